"""Shows what a policy kept of each segment of a task's prompts, budget by budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cachecraft.errors import RunError
from cachecraft.evaluation.store import Result
from cachecraft.reporting.samples import results_of

_ORDER = ("template", "instruction", "example", "needle", "answer", "distractor")  # others follow, then these:
_LAST = ("question", "rest")


def print_retention(console: Console, folder: Path, *, policy: str, task: str) -> None:
    """Print the share of each segment that a row of a run kept, averaged over items, layers and kv heads.

    Args:
        console: Where to print.
        folder: The run's folder.
        policy: A row's name.
        task: A task's name, ``ruler:`` may be left out.

    Raises:
        UnknownNameError: The run has no such row or task.
        RunError: The folder is no run, or what it holds was measured before retention was recorded.
    """
    task, results, _ = results_of(folder, policy=policy, task=task)
    # An item measured with several scorings was compressed once: the draws of the random row differ in their policy.
    once = {(result.item, result.policy, result.budget): result for result in results if result.state == "ok"}
    recorded = [result for result in once.values() if "retention" in result.detail]
    if not recorded:
        raise RunError(
            f"{folder} does not say what {policy} kept of each segment on {task}: it was rejected there, or measured "
            "before this was recorded; measure it again in another folder."
        )
    budgets = list(dict.fromkeys(result.budget for result in recorded))
    title = escape(f"{policy} on {task}: share kept")
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for column in ("segment", "tokens", *budgets):
        table.add_column(column, justify="left" if column == "segment" else "right")
    for name in segment_names(recorded):
        tokens = fmean(values_of(recorded, "segments", name, "tokens"))
        table.add_row(name, f"{tokens:.0f}", *_cells(recorded, budgets, "segments", name, "kept"))
    for name in dict.fromkeys(name for result in recorded for name in result.detail["retention"]["survived"]):
        table.add_section()
        table.add_row(f"items whose {name} survived", "", *_cells(recorded, budgets, "survived", name))
        table.add_row(f"heads that kept the whole {name}", "", *_cells(recorded, budgets, "whole", name))
    console.print(table)
    items = {result.item for result in recorded}
    console.print(
        f"{len(items)} items; shares are averaged over layers and kv heads. Survived: in every layer, each of its "
        "tokens was kept by at least one kv head.",
        style="dim",
        markup=False,
    )
    if missing := len({result.item for result in once.values()} - items):
        console.print(f"{missing} more items were measured before this was recorded.", style="dim", markup=False)


def segment_names(results: Iterable[Result]) -> list[str]:
    """The segments of which results say what was kept, in the order of being shown."""
    found = {name for result in results for name in result.detail["retention"]["segments"]}
    known = [*_ORDER, *sorted(found - {*_ORDER, *_LAST}), *_LAST]
    return [name for name in known if name in found]


def values_of(results: Iterable[Result], *path: str) -> list[float]:
    """The numbers at a place of each result's retention, where they are."""
    found = []
    for result in results:
        value: Any = result.detail["retention"]
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(float(value))
    return found


def _cells(results: Sequence[Result], budgets: Sequence[str], *path: str) -> list[str]:
    rows = []
    for budget in budgets:
        values = values_of((result for result in results if result.budget == budget), *path)
        rows.append(f"{fmean(values):.2f}" if values else "—")
    return rows
