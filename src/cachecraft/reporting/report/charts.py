"""Draws charts as SVG that belongs into a page: its colours follow the page's light or dark, its text is text.

Colours are placeholders while matplotlib draws and become the page's variables afterwards. Every chart has its numbers
in a table beside it, and says by markers and dashes what it says by colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachecraft.reporting.plots import COLOURS, draw_panel
from cachecraft.reporting.summary import Summary
from cachecraft.reporting.tables import UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID = "#010203", "#040506"  # stand for the page's text and its faint lines
_IDS = re.compile(r'(<(?:g|text)\b[^>]*?) id="[^"]*"')
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SIZE = re.compile(r'<svg\b[^>]*?viewBox="([^"]*)"[^>]*>')


@dataclass(frozen=True)
class Point:
    """A candidate in a chart of a search: its number and its fitness."""

    number: int
    fitness: float


def svg(draw: Callable[[Axes], None], *, name: str, label: str, size: tuple[float, float] = (8.6, 4.4)) -> str:
    """Draw one pair of axes as the text of an `<svg>` element.

    Args:
        draw: Draws into the axes.
        name: Unlike that of any other chart of the page: ids inside are made from it.
        label: What a screen reader says of it.
        size: Width and height in inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,
        "font.size": 10.5,
        "legend.frameon": False,
        "grid.color": GRID,
    }
    with rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        axis = figure.subplots()
        axis.patch.set_alpha(0.0)
        axis.spines[["top", "right"]].set_visible(False)
        draw(axis)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _for_page(text.getvalue(), label)


def _for_page(text: str, label: str) -> str:
    """The drawing without what only a file of its own needs, in the page's colours."""
    from markupsafe import escape

    text = _COMMENT.sub("", text[text.index("<svg") :])
    text = _IDS.sub(r"\1", text)
    head = f'<svg viewBox="\\1" role="img" aria-label="{escape(label)}">'.replace("\\1", _viewbox(text))
    text = head + text[text.index(">") + 1 :]
    for colour, variable in ((INK, "currentColor"), (GRID, "var(--line)"), ("#000000", "currentColor")):
        text = text.replace(colour, variable)
    for place, colour in enumerate(COLOURS):
        text = text.replace(colour.lower(), f"var(--c{place})")
    return text.strip()


def _viewbox(text: str) -> str:
    found = _SIZE.match(text)
    return found.group(1) if found else "0 0 620 320"


def score_chart(summary: Summary, *, name: str) -> str:
    """Score against the share of bytes kept, a line with intervals for each policy."""
    names = [row.label for row in summary.rows if not row.reference]

    def draw(axis: Axes) -> None:
        draw_panel(axis, summary, names)
        axis.set_xlabel("bytes kept, % of the full cache")
        axis.set_ylabel(UNITS[summary.scoring].replace(", nats", ",\nnats").replace(" under ", "\nunder "))
        axis.grid(axis="y")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9.5)

    return svg(draw, name=name, label=f"Score against bytes kept, {summary.scoring}", size=(9.0, 5.0))


def search_chart(
    points: Sequence[Point],
    best: Sequence[Point],
    marks: Sequence[tuple[int, str]],
    known: tuple[str, float] | None,
    *,
    name: str,
) -> str:
    """Fitness over candidates: each one, the best so far, the best known policy, and where diagnoses were made.

    Args:
        points: Every candidate that has a fitness.
        best: Where the best rose.
        marks: (last candidate before it, letter) of each diagnosis.
        known: Name and fitness of the best built-in policy.
        name: As in `svg`.
    """

    def draw(axis: Axes) -> None:
        low, high = _range([each.fitness for each in points])
        axis.plot(
            [each.number for each in points],
            [max(low, each.fitness) for each in points],
            *("o",),
            color=COLOURS[5],
            markersize=2.6 if len(points) > 300 else 4,
            label="a candidate",
        )
        last = max(each.number for each in points)
        _best_so_far(axis, best, last)
        if known is not None:
            axis.axhline(known[1], linestyle="--", color=INK, linewidth=1.1, label=f"best known: {known[0]}")
        for place, letter in marks:
            axis.axvline(place + 0.5, linestyle=":", color=INK, linewidth=1.0)
            axis.text(place + 0.5, high, f" {letter}", ha="left", va="top")
        axis.set_ylim(low - 0.03 * (high - low), high)
        axis.set_xlabel("candidate, in the order of being proposed")
        axis.set_ylabel("fitness: share of the way\nfrom random to full cache")
        axis.grid(axis="y")
        axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=9.5)

    return svg(draw, name=name, label="Fitness over candidates, with the best so far")


def _best_so_far(axis: Axes, best: Sequence[Point], last: int) -> None:
    """A line of steps that ends where the search has got to."""
    steps = [*best, Point(last, best[-1].fitness)]
    axis.plot(
        [each.number for each in steps],
        [each.fitness for each in steps],
        drawstyle="steps-post",
        color=COLOURS[1],
        linewidth=1.8,
        label="best so far",
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From where to where fitness is shown: hopeless candidates must not press all others into one line."""
    ordered = sorted(values)
    low = max(ordered[0], min(-0.1, ordered[len(ordered) // 10]))
    return low, max(ordered[-1] + 0.05 * (ordered[-1] - low), low + 0.1)


def budget_chart(found: Sequence[Sequence[float]], falling: Sequence[float], *, name: str) -> str:
    """What each layer keeps, beside a uniform division and a pyramid of the same total; of kv heads mean and range."""

    def draw(axis: Axes) -> None:
        layers = range(len(found))
        means = [sum(row) / len(row) for row in found]
        axis.bar(layers, means, color=COLOURS[5], label="found")
        if any(len(row) > 1 for row in found):
            lows, highs = [min(row) for row in found], [max(row) for row in found]
            axis.vlines(layers, lows, highs, color=COLOURS[0], label="kv heads")
        axis.axhline(sum(means) / len(means), color=INK, linewidth=1.2, label="uniform")
        axis.plot(layers, falling, "--", color=COLOURS[1], marker="s", markersize=3.5, label="pyramid")
        axis.set_xlabel("layer")
        axis.set_ylabel("entries kept per kv head")
        axis.grid(axis="y")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))

    return svg(draw, name=name, label="Entries kept by layer, beside uniform and pyramid")


def progress_chart(values: Sequence[float], best: Sequence[Point], *, name: str) -> str:
    """Objective of the vectors of a search of budgets, in the order of being measured, and the best so far."""

    def draw(axis: Axes) -> None:
        axis.plot(range(1, len(values) + 1), values, "o", color=COLOURS[5], markersize=3, label="a vector")
        _best_so_far(axis, best, len(values))
        axis.set_xlabel("vector of budgets, in the order of being measured")
        axis.set_ylabel("objective")
        axis.grid(axis="y")
        axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    return svg(draw, name=name, label="Progress of the search of budgets")
