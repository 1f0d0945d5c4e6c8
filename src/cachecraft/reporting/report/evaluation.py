"""What the report says of an evaluation: scores against bytes, tasks by policies, what was kept of each segment.

An evaluation that is not finished is told as far as all its rows have come, and is said to be unfinished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from cachecraft.errors import RunError
from cachecraft.evaluation.rows import told_apart
from cachecraft.evaluation.store import Result, RunStore
from cachecraft.reporting.report.charts import score_chart
from cachecraft.reporting.report.runs import RunFolder
from cachecraft.reporting.report.samples import Samples, samples_of
from cachecraft.reporting.retention import segment_names, values_of
from cachecraft.reporting.summary import FULL_BUDGET, CellSummary, Row, Summary, length_of, summaries
from cachecraft.reporting.tables import heading, notes


@dataclass(frozen=True)
class Heat:
    """A table whose cells are shaded by their numbers.

    Attributes:
        title: What it shows.
        columns: Names.
        rows: Name, whether a reference line, and for each column the number and its shade from 0 to 1, or None.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, bool, tuple[tuple[float, float] | None, ...]], ...]


@dataclass(frozen=True)
class Scored:
    """What is shown for one scoring, and length where there are several.

    Attributes:
        title, name: For headings and for files.
        summary, chart, headings, heats, notes: The summary, its chart, its heat maps and the notes of its table.
    """

    title: str
    name: str
    summary: Summary
    chart: str
    headings: tuple[str, ...]
    heats: tuple[Heat, ...]
    notes: tuple[str, ...]

    def cells(self, row: Row) -> list[CellSummary | None]:
        """A row's cells by budget; the full cache keeps everything, whatever the column's budget."""
        if row.label == "full":
            return [next(iter(row.cells.values()))] * len(self.summary.budgets)
        return [row.cells.get(budget) for budget in self.summary.budgets]


@dataclass(frozen=True)
class EvaluationSection:
    """Everything that the report says of an evaluation."""

    facts: tuple[tuple[str, str], ...]
    unfinished: str
    scored: tuple[Scored, ...]
    kept: tuple[Heat, ...]
    samples: Samples | None


def evaluation_section(run: RunFolder, key: str) -> EvaluationSection | None:
    """Read an evaluation.

    Args:
        run: A run; one that measured nothing and was not asked to has no such section.
        key: Unlike that of any other section of the page.
    """
    if not run.count("results"):
        if run.settings.get("command") != "evaluate":
            return None
        return EvaluationSection(_facts(run, []), "Nothing was measured yet.", (), (), None)
    store = RunStore(run.folder, run.connection, dict(run.settings))
    results = told_apart(store.results())
    texts = store.item_texts() if "items" in run.tables else {}
    unfinished, scored = _unfinished(run, results), list[Scored]()
    try:
        told = summaries(results, run.settings, texts)
        several = len({each.length for each in told}) > 1
        scored = [_scored(each, run, key, several=several) for each in told]
    except RunError as error:
        unfinished = str(error)

    def length(result: Result) -> int:
        return length_of(result, run.settings, texts)

    return EvaluationSection(
        _facts(run, results),
        unfinished,
        tuple(scored),
        _kept(results, length),
        samples_of(results, texts, key, length),
    )


def _facts(run: RunFolder, results: Sequence[Result]) -> tuple[tuple[str, str], ...]:
    own = run.settings
    found = [
        ("model", f"{own.get('model', '?')}, {own.get('dtype', '?')}"),
        ("context", f"{_lengths(own.get('length'))} tokens, query-{own.get('regime', '?')}"),
        ("tasks", str(len({result.task for result in results}) or len(own.get("tasks") or []))),
        ("items", f"{len({result.item for result in results})}, split {own.get('split', '?')}"),
        ("policies", str(len({result.label for result in results if not result.reference}))),
    ]
    return tuple(found)


def _lengths(found: object) -> str:
    return ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found or "?")


def _unfinished(run: RunFolder, results: Sequence[Result]) -> str:
    """Says how far an evaluation is that has not measured every item for every row; "" for one that has."""
    items: dict[tuple[str, str, str], set[str]] = {}
    for result in results:
        items.setdefault((result.label, result.budget, result.scoring), set()).add(result.item)
    least, most = min(map(len, items.values())), max(map(len, items.values()))
    planned = run.settings.get("planned")  # runs that are older do not say, and are as long as their longest row
    asked = max(most, sum(planned.values()) if isinstance(planned, dict) else 0)
    if least < asked:
        return f"{least} of {asked} items are measured for every row; the numbers are those of these items."
    return ""


def _scored(summary: Summary, run: RunFolder, key: str, *, several: bool) -> Scored:
    title, name = summary.scoring.replace("_", " "), summary.scoring
    if several:
        title, name = f"{title}, {summary.length} tokens", f"{name}-{summary.length}"
    return Scored(
        title,
        name,
        summary,
        score_chart(summary, name=f"{key}-{summary.scoring}-{summary.length}"),
        tuple(heading(summary, budget) for budget in summary.budgets),
        tuple(_heat(summary, budget) for budget in summary.budgets),
        tuple(notes(summary, dict(run.settings))),
    )


def _heat(summary: Summary, budget: str) -> Heat:
    """Tasks by policies at one budget; shades go from the least to the greatest number of the whole summary."""
    tasks = sorted(summary.items)
    values = [value for row in summary.rows for cell in row.cells.values() for value in cell.by_task.values()]
    low, high = (0.0, 1.0) if summary.scoring != "likelihood" else (min(values, default=0), max(values, default=1))
    rows = []
    for row in summary.rows:
        cell = row.cells.get(FULL_BUDGET if row.label == "full" else budget)
        if cell is not None:
            found = [cell.by_task.get(task) for task in tasks]
            rows.append((row.label, row.reference, tuple(_shaded(value, low, high) for value in found)))
    return Heat(budget_title(budget), tuple(task.removeprefix("ruler:") for task in tasks), tuple(rows))


def budget_title(label: str) -> str:
    """A budget in words: ``0.75 evicted`` or ``128 entries kept``."""
    return f"{label.removeprefix('keep ')} entries kept" if label.startswith("keep ") else f"{label} evicted"


def _shaded(value: float | None, low: float, high: float) -> tuple[float, float] | None:
    if value is None:
        return None
    return value, min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0


def _kept(results: Iterable[Result], length: Callable[[Result], int]) -> tuple[Heat, ...]:
    """Share kept of each segment by policy, averaged over items, layers and heads; by length and budget."""
    groups: dict[tuple[int, str], dict[str, list[Result]]] = {}
    for result in results:
        if result.state == "ok" and result.label != "full" and "retention" in result.detail:
            groups.setdefault((length(result), result.budget), {}).setdefault(result.label, []).append(result)
    several = len({tokens for tokens, _ in groups}) > 1
    found = []
    for (tokens, budget), by_label in sorted(groups.items(), key=lambda pair: pair[0][0]):
        names = segment_names(result for own in by_label.values() for result in own)
        rows = []
        for label, own in by_label.items():
            means = [values_of(own, "segments", name, "kept") for name in names]
            shares = tuple(_shaded(fmean(each), 0.0, 1.0) if each else None for each in means)
            rows.append((label, own[0].reference, shares))
        rows.sort(key=lambda row: row[0])
        title = f"{budget_title(budget)}, {tokens} tokens" if several else budget_title(budget)
        found.append(Heat(title, tuple(names), tuple(rows)))
    return tuple(found)
