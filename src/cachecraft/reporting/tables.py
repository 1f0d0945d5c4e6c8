"""Prints a summary: as a table for the terminal, as Markdown, and as CSV and JSON files."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from rich.markup import escape
from rich.table import Table

from cachecraft.evaluation.statistics import Estimate
from cachecraft.reporting.summary import CellSummary, Row, Summary

_NARROW = 22  # columns for the names of rows

UNITS = {
    "answer": "each task's own metric on the generated answer",
    "likelihood": "mean log-probability of the reference answer, nats per token",
    "forced_match": "share of items with all reference tokens right under teacher forcing",
    "fidelity": "share of tokens on which it agrees with the full cache",
}


def number(estimate: Estimate) -> str:
    """``0.83 [0.74, 0.91]``."""
    return f"{estimate.estimate:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def cell_text(cell: CellSummary | None) -> str:
    """What a cell of the table shows."""
    if cell is None:
        return ""
    if cell.score is None:
        return "rejected"
    return number(cell.score) + ("*" if cell.forced else "")


def heading(summary: Summary, budget: str) -> str:
    """The budget with the share of the bytes that is really kept, ``0.75 (25 % kept)``."""
    shares = [row.cells[budget].kept for row in summary.rows if budget in row.cells and row.cells[budget].score]
    kept = f"{100 * sum(shares) / len(shares):.0f} % kept" if shares else "nothing kept"
    return f"{budget} ({kept})"


def terminal_table(summary: Summary) -> Table:
    """A rich table: one row per policy, best first, the reference lines in italics."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True, max_width=_width(summary), overflow="ellipsis")
    for budget in summary.budgets:
        table.add_column(heading(summary, budget), justify="right", no_wrap=len(summary.budgets) <= 3)
    for row in summary.rows:
        style = "italic" if row.reference else ""
        table.add_row(escape(row.label), *(cell_text(_shown(row, budget)) for budget in summary.budgets), style=style)
    return table


def difference_table(summary: Summary) -> Table:
    """A rich table of the paired differences to the row named in the summary; ``!`` where it is shown by itself."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(escape(f"minus {summary.against}"), no_wrap=True, max_width=_width(summary), overflow="ellipsis")
    for budget in summary.budgets:
        table.add_column(budget, justify="right", no_wrap=len(summary.budgets) <= 3)
    for row in summary.rows:
        if row.label == summary.against:
            continue
        found = [row.cells[budget].difference if budget in row.cells else None for budget in summary.budgets]
        if any(found):
            table.add_row(escape(row.label), *("" if each is None else _signed(each) for each in found))
    return table


def _signed(estimate: Estimate) -> str:
    return f"{estimate.estimate:+.2f} [{estimate.low:.2f},{estimate.high:.2f}]{'!' if estimate.sure else ' '}"


def _width(summary: Summary) -> int:
    """Of the column of names: narrow, unless two that are cut there would look alike."""
    names = [row.label for row in summary.rows]
    return _NARROW if len({name[: _NARROW - 1] for name in names}) == len(names) else max(map(len, names))


def _shown(row: Row, budget: str) -> CellSummary | None:
    """The full cache keeps everything, whatever the budget of the column."""
    return next(iter(row.cells.values())) if row.label == "full" else row.cells.get(budget)


def averaged(summary: Summary) -> str:
    """Of how many tasks the macro average is: ``11 of 13 tasks``, or ``4 tasks`` when none was skipped."""
    held, skipped = len(summary.items), len(summary.skipped)
    return f"{held} of {held + skipped} tasks" if skipped else f"{held} task{'s' if held != 1 else ''}"


def notes(summary: Summary, settings: dict[str, Any]) -> list[str]:
    """The lines below a table: what was measured, on what, and what to know about single rows."""
    tasks = ", ".join(f"{task.removeprefix('ruler:')} ({count})" for task, count in sorted(summary.items.items()))
    lines = [
        f"Score: {UNITS[summary.scoring]}; macro average of {averaged(summary)}, 95 % interval.",
        f"Items: {tasks}; split {settings.get('split')}, {summary.length} tokens, seed {settings.get('seed')}.",
        f"Model {settings.get('model')} in {settings.get('dtype')}; query-{settings.get('regime')} regime.",
    ]
    if summary.skipped:
        each = (f"{task.removeprefix('ruler:')} (it {needs})" for task, needs in sorted(summary.skipped.items()))
        lines.append(f"Skipped: {', '.join(each)}.")
    lines += _not_as_they_are(summary, settings)
    if note := settings.get("not_compressed"):
        lines.append(note)
    full = next((row for row in summary.rows if row.label == "full"), None)
    if full is not None:
        means = next(iter(full.cells.values())).by_task
        shown = ", ".join(f"{task.removeprefix('ruler:')} {mean:.2f}" for task, mean in sorted(means.items()))
        lines.append(f"Full cache by task: {shown}.")
        if summary.scoring == "answer" and (low := [task for task, mean in means.items() if mean < 0.5]):
            lines.append(f"The model itself fails {', '.join(sorted(low))} (full cache below 0.5): read with care.")
    forced = [f"{row.label} at {budget}" for row in summary.rows for budget, cell in row.cells.items() if cell.forced]
    if forced:
        lines.append(f"* Protection left nothing to the scorer: {', '.join(forced)}.")
    for row in summary.rows:
        reasons = {cell.rejected for cell in row.cells.values() if cell.rejected}
        lines += [f"{row.label} was rejected: {reason}" for reason in sorted(reasons)]
        lines += [f"{row.label} at {budget}: {cell.note}" for budget, cell in row.cells.items() if cell.note]
    return lines


def _not_as_they_are(summary: Summary, settings: dict[str, Any]) -> list[str]:
    """Which tasks' items were left out or cut because of their length, and how many repeat others."""
    lines = []
    looked_at = settings.get("looked_at") or {}
    for key, said in (("left_out", "Left out as longer than that"), ("cut", "Cut to that length")):
        held = settings.get(key) or {}
        found = [
            f"{task} {held[place]}" + (f" of {looked_at[place]} looked at" if place in looked_at else "")
            for task in sorted({*summary.items, *summary.skipped})
            if (place := f"{task} at {summary.length}") in held
        ]
        if found:
            lines.append(f"{said}: {', '.join(found)}.")
    repeated = {task: count for task, count in (settings.get("repeated") or {}).items() if task in summary.items}
    if repeated:
        each = ", ".join(f"{task} {count}" for task, count in sorted(repeated.items()))
        lines.append(f"Entries of the data that repeat another, counted once: {each}.")
    return lines


def markdown(summary: Summary) -> str:
    """The table as Markdown."""
    lines = [
        "| policy | " + " | ".join(heading(summary, budget) for budget in summary.budgets) + " |",
        "|---|" + "---:|" * len(summary.budgets),
    ]
    for row in summary.rows:
        name = f"*{row.label}*" if row.reference else row.label
        cells = " | ".join(cell_text(_shown(row, budget)) for budget in summary.budgets)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def records(summary: Summary) -> list[dict[str, Any]]:
    """One flat record for each row, budget and task, and for the macro average under task ``macro``.

    ``kl`` is the mean KL from the full cache, nats per token, which only fidelity measures.
    """
    found = []
    for row in summary.rows:
        for budget, cell in row.cells.items():
            base = {
                "scoring": summary.scoring,
                "policy": row.label,
                "reference": row.reference,
                "budget": budget,
                "kept": round(cell.kept, 6),
                "forced": cell.forced,
                "rejected": cell.rejected,
                "tasks": len(summary.items),
                "tasks_skipped": " ".join(sorted(summary.skipped)),
                "length": summary.length,
            }
            if cell.score is None:
                found.append({**base, "task": "macro", "score": None, "low": None, "high": None, "kl": None, "n": 0})
                continue
            macro = {"score": cell.score.estimate, "low": cell.score.low, "high": cell.score.high, "kl": cell.kl}
            found.append({**base, "task": "macro", **macro, "n": cell.score.n})
            for task, mean in sorted(cell.by_task.items()):
                one = {"score": mean, "low": None, "high": None, "kl": cell.kl_by_task.get(task)}
                found.append({**base, "task": task, **one, "n": summary.items[task]})
    return found


def as_csv(summaries: list[Summary]) -> str:
    """The records of several summaries as CSV."""
    rows = [record for summary in summaries for record in records(summary)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(summaries: list[Summary], settings: dict[str, Any]) -> str:
    """The settings and the records of several summaries as JSON."""
    rows = [record for summary in summaries for record in records(summary)]
    average = {"of": averaged(summaries[0]), "skipped": summaries[0].skipped} if summaries else {}
    return json.dumps({"settings": settings, "average": average, "results": rows}, indent=1, default=str) + "\n"
