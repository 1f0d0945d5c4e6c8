"""Prints which tasks there are: what each measures, its data, their licence, and what is missing here."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cachecraft.errors import UnknownNameError
from cachecraft.tasks.catalogue import ABOUT, MEASURES
from cachecraft.tasks.registry import FAMILIES
from cachecraft.tasks.scoring.named import METRICS
from cachecraft.tasks.sources import Sources


def print_catalogue(console: Console, sources: Sources, only: str = "") -> None:
    """Print every family and its tasks.

    Args:
        console: Where to print.
        sources: What the user has.
        only: One family; "" for all.

    Raises:
        UnknownNameError: There is no such family.
        TaskError: What the user named cannot be read.
    """
    if only and only not in FAMILIES:
        raise UnknownNameError("family of tasks", only, FAMILIES)
    for family in [only] if only else FAMILIES:
        about = ABOUT[family]
        console.print(f"{family}: {about.title}", style="bold", markup=False)
        console.print(f"  data: {about.data}; licence: {about.licence}", markup=False, soft_wrap=True)
        console.print(
            f"  regimes: {about.regimes}; items longer than the length: {about.too_long}", markup=False, soft_wrap=True
        )
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for task in FAMILIES[family](sources):
            missing = task.missing
            table.add_row(f"  {task.name}", "" if missing else "ready", MEASURES[task.name])
            if missing and only:
                table.add_row("", "", f"[dim]{escape(missing)}[/]")
        console.print(table)
        lacking = [task for task in FAMILIES[family](sources) if task.missing]
        if lacking and not only:
            others = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
            console.print(
                f"  missing: {lacking[0].name}{others} {lacking[0].missing}", style="dim", markup=False, soft_wrap=True
            )
        console.print()
    if not only:
        console.print(
            "FILE.jsonl: tasks of your own, one item a line (docs/tasks.md); metrics:", style="bold", markup=False
        )
        for name, metric in METRICS.items():
            console.print(f"  {name:<17} {metric.about}", markup=False, soft_wrap=True)
