"""How a search of budgets shows itself: live while it runs, its table, and a picture of the budgets by layer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cachecraft.budgets.search import SearchProgress
from cachecraft.policy.allocation import Shape, pyramid
from cachecraft.policy.budgets_file import BudgetsFile, rows_of
from cachecraft.reporting.plots import COLOURS

PLAIN_SECONDS = 15.0  # between two lines where there is no terminal


@contextmanager
def budget_display(console: Console) -> Iterator[Callable[[SearchProgress], None]]:
    """Show a search: a live panel on a terminal, else a line now and then."""
    if not console.is_terminal or os.environ.get("NO_COLOR"):
        last = 0.0

        def update(seen: SearchProgress) -> None:
            nonlocal last
            if time.monotonic() - last >= PLAIN_SECONDS:
                last = time.monotonic()
                console.print(_line(seen), markup=False, soft_wrap=True)

        yield update
        return
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield lambda seen: live.update(Group(ProgressBar(total=1.0, completed=seen.share, width=60), Text(_line(seen))))


def _line(seen: SearchProgress) -> str:
    if seen.what:
        return f"table: {seen.what}"
    left = seen.seconds * (1 - seen.share) / seen.share if seen.share else None
    item = f", item {seen.item} of {seen.items}" if seen.items else ""
    best = "nothing measured yet"
    if seen.fitness is not None:
        best = f"best {seen.fitness:.3f} at {seen.best:.1f} entries a head, uniform {seen.uniform:.3f}"
    return (
        f"group {min(seen.group + 1, seen.groups)} of {seen.groups}, generation {seen.iteration} of {seen.iterations}"
        f"{item}, {seen.measured} vectors: {best}; {_minutes(seen.seconds)} spent"
        + (f", about {_minutes(left)} left" if left is not None else "")
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def budget_table(found: BudgetsFile) -> Table:
    """The divisions side by side, best on held-out items first where there are any."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    held_out = any(row.validation is not None for row in found.table)
    table.add_column("division")
    table.add_column("search items", justify="right")
    if held_out:
        table.add_column("held-out items", justify="right")
    for row in sorted(found.table, key=lambda row: -(row.search if row.validation is None else row.validation)):
        cells = [f"{row.search:.3f}"] + ([] if row.validation is None else [f"{row.validation:.3f}"])
        table.add_row(row.name, *cells)
    return table


def budget_notes(found: BudgetsFile) -> list[str]:
    """What of the table's divisions had to give way, a line each."""
    return [f"{row.name}: {row.note}" for row in found.table if row.note]


def falling_like(means: Sequence[float], tokens: int | None) -> list[float]:
    """The pyramid with the total of given budgets.

    Args:
        means: Entries per kv head of each layer.
        tokens: The most that a layer can keep; None where it is not known.
    """
    target = sum(means) / len(means)
    shape = Shape(len(means), 1, tokens or round(2 * target) + 1)
    return [float(count) for count in pyramid(shape, max(1, round(target)), 0).counts[:, 0].tolist()]


def plot_budgets(found: BudgetsFile, paths: Sequence[Path], *, title: str) -> None:
    """Draw the budget of each layer beside a uniform one and a pyramid of the same total.

    Args:
        found: Budgets; of kv heads the mean is drawn, and the range as a band.
        paths: Files to write; the ending says the format (png, svg, pdf).
        title: Above the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = rows_of(found.budgets)
    layers = range(len(rows))
    means = [sum(row) / len(row) for row in rows]
    target = sum(means) / len(means)
    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.bar(layers, means, color=COLOURS[5], label="found")
    if len(rows[0]) > 1:
        axis.vlines(layers, [min(row) for row in rows], [max(row) for row in rows], color=COLOURS[0], label="kv heads")
    axis.axhline(target, color="black", linewidth=1.2, label="uniform")
    axis.plot(
        layers,
        falling_like(means, found.tokens),
        "--",
        color=COLOURS[1],
        linewidth=1.4,
        marker="s",
        markersize=3,
        label="pyramid",
    )
    axis.set_title(title)
    axis.set_xlabel("layer")
    axis.set_ylabel("entries kept per kv head")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(frameon=False)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
