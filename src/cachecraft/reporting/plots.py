"""Plots of a summary; each can be read without colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cachecraft.reporting.summary import Summary
from cachecraft.reporting.tables import UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which the colour-blind can tell apart; markers and dashes repeat what colour says.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f", "#8c564b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def plot_score_against_bytes(summaries: Sequence[Summary], paths: Sequence[Path], *, titles: Sequence[str]) -> None:
    """Draw score against the share of bytes kept, a line with intervals for each policy, one panel per summary.

    Args:
        summaries: At least one.
        paths: Files to write; the ending says the format (png, svg, pdf).
        titles: One for each panel.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 5.0 * len(summaries), 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(summaries), squeeze=False, sharey=True)[0]
    names = [row.label for row in summaries[0].rows if not row.reference]
    for axis, summary, title in zip(axes, summaries, titles, strict=True):
        draw_panel(axis, summary, names)
        axis.set_title(title)
        axis.set_xlabel("bytes kept, % of the full cache")
    axes[0].set_ylabel(UNITS[summaries[0].scoring])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def legend_name(label: str) -> str:
    """A label as a legend shows it: matplotlib leaves out those that begin with an underscore."""
    return f" {label}" if label.startswith("_") else label


def draw_panel(axis: Axes, summary: Summary, names: Sequence[str]) -> None:
    """Draw a summary's lines, intervals and reference lines into axes.

    Args:
        axis: Where to.
        summary: What.
        names: The policies in the order of their colours and markers.
    """
    shift = 0.0
    for row in summary.rows:
        cells = [cell for cell in row.cells.values() if cell.score is not None]
        points = [(100 * cell.kept, cell.score) for cell in cells if cell.score is not None]
        if not points:
            continue
        if row.label == "full":
            axis.axhline(points[0][1].estimate, color="black", linewidth=1.2, label="full cache")
            continue
        x = [kept for kept, _ in points]
        y = [score.estimate for _, score in points]
        if row.reference:
            style = "--" if row.label == "hindsight" else ":"
            axis.plot(x, y, style, color="black", linewidth=1.2, label=legend_name(f"{row.label} (reference)"))
            continue
        place = names.index(row.label) if row.label in names else 0
        below = [max(0.0, score.estimate - score.low) for _, score in points]
        above = [max(0.0, score.high - score.estimate) for _, score in points]
        axis.errorbar(
            [kept + shift for kept in x],  # a little apart, so that intervals do not hide each other
            y,
            yerr=[below, above],
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            linestyle="-" if place < len(COLOURS) else "-.",
            linewidth=1.4,
            markersize=5,
            capsize=2,
            elinewidth=0.8,
            label=legend_name(row.label),
        )
        shift += 0.25
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
