"""Condenses a run's per-item results into one row per policy: macro averages with intervals, paired differences.

Every number compares like with like: the same items for every row of a scoring, the random line averaged over its
draws item by item. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachecraft.errors import RunError, UnknownNameError
from cachecraft.evaluation.rows import clusters_of, told_apart
from cachecraft.evaluation.statistics import Estimate, TaskScores, macro_difference, macro_mean
from cachecraft.evaluation.store import Result

FORCED_MATCH = "forced_match"
FULL_BUDGET = "0"  # the label under which the full cache is measured


@dataclass(frozen=True)
class CellSummary:
    """One row at one budget.

    Attributes:
        score: Macro mean over tasks with its interval, or None when the policy was rejected somewhere.
        by_task: Mean score of each task.
        kept: Bytes kept divided by the bytes of the whole cache.
        forced: Protection left nothing to the scorer on every item.
        rejected: The sentence of the first rejection, or "".
        difference: Paired macro difference to the reference named, if one was.
        note: What an allocation had to give way to on some item, or "".
        kl_by_task: Under fidelity, mean KL from the full cache on each task, nats per token; else empty.
    """

    score: Estimate | None
    by_task: dict[str, float]
    kept: float
    forced: bool
    rejected: str
    difference: Estimate | None = None
    note: str = ""
    kl_by_task: dict[str, float] = field(default_factory=dict)

    @property
    def kl(self) -> float | None:
        """Macro mean of the KL over tasks; None where it was not measured."""
        return sum(self.kl_by_task.values()) / len(self.kl_by_task) if self.kl_by_task else None


@dataclass(frozen=True)
class Row:
    """One program under one label, or a reference line: its cells by budget, and the mean of their scores."""

    label: str
    reference: bool
    cells: dict[str, CellSummary]

    @property
    def mean(self) -> float:
        """Mean of the scores over budgets; minus infinity when there is none."""
        scores = [cell.score.estimate for cell in self.cells.values() if cell.score is not None]
        return sum(scores) / len(scores) if scores else float("-inf")


@dataclass(frozen=True)
class Summary:
    """A run's results under one scoring.

    Attributes:
        scoring: ``answer``, ``likelihood``, ``fidelity`` or ``forced_match``.
        budgets: Labels in order of rising eviction.
        rows: Policies and reference lines, best first; the full cache before all others.
        items: Items of each task.
        against: The reference of the differences, or "".
        skipped: Tasks that were asked for and could not be made, with what each needs.
        length: Tokens of the items; None where results of several lengths are together.
    """

    scoring: str
    budgets: tuple[str, ...]
    rows: tuple[Row, ...]
    items: dict[str, int]
    against: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    length: int | None = None


def summarise(
    results: Iterable[Result],
    scoring: str,
    *,
    against: str = "",
    confidence: float = 0.95,
    skipped: Mapping[str, str] | None = None,
) -> Summary:
    """Condense results.

    Args:
        results: Of one run.
        scoring: Which of its scorings, or ``forced_match``, which is measured with ``likelihood``.
        against: A row that all others are compared with, item by item at the same budget; "" for none. Programs that
            share a label are rows of their own, called by it and a short id.
        confidence: Of the two-sided intervals.
        skipped: Tasks that the run could not make, with what each needs; those measured since are not skipped.

    Raises:
        RunError: There are no results under this scoring, or rows were measured on different items.
        UnknownNameError: There is no row called `against`.
    """
    chosen = _chosen(told_apart(results), scoring)
    if not chosen:
        raise RunError(f"The run holds no results under scoring {scoring!r}; measure some with --scoring {scoring}.")
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in chosen:
        groups.setdefault((result.label, result.budget), []).append(result)
    labels = list(dict.fromkeys(result.label for result in chosen))
    if against and against not in labels:
        raise UnknownNameError("row of this run", against, labels)
    common, clusters = _common_items(groups), clusters_of(chosen)
    budgets = sorted({budget for label, budget in groups if label != "full"} or {FULL_BUDGET}, key=_by_eviction)
    rows = []
    for label in labels:
        cells = {}
        for budget in [FULL_BUDGET] if label == "full" else budgets:
            if (label, budget) in groups:
                cells[budget] = _cell(groups[label, budget], common, clusters, confidence)
        rows.append(Row(label, groups[label, next(iter(cells))][0].reference, cells))
    if against:
        rows = [_compared(row, against, groups, common, clusters, confidence) for row in rows]
    rows.sort(key=lambda row: (row.label != "full", -row.mean, row.label))
    items: dict[str, int] = {}
    for task, _ in common:
        items[task] = items.get(task, 0) + 1
    left_out = {task: needs for task, needs in (skipped or {}).items() if task not in items}
    return Summary(scoring, tuple(budgets), tuple(rows), items, against, left_out)


def length_of(result: Result, settings: Mapping[str, Any], texts: Mapping[str, Mapping[str, Any]]) -> int:
    """The length in tokens that a result's item was made for.

    Args:
        result: Of one run.
        settings: The run's.
        texts: By item id, what the run stores of its prompt.
    """
    first = settings["length"][0] if isinstance(settings["length"], list | tuple) else settings["length"]
    return int(texts.get(result.item, {}).get("length", first))


def summaries(
    results: Sequence[Result],
    settings: Mapping[str, Any],
    texts: Mapping[str, Mapping[str, Any]],
    *,
    against: str = "",
) -> list[Summary]:
    """A summary for each scoring and length that results hold; what a likelihood saw is told as forced match, too.

    Args:
        results: Of one run.
        settings: The run's; its scorings come first, in their order.
        texts: By item id, what the run stores of its prompt.
        against: As in `summarise`.
    """
    held: dict[tuple[str, int], list[Result]] = {}
    for result in told_apart(results):
        held.setdefault((result.scoring, length_of(result, settings, texts)), []).append(result)
    found = []
    for scoring in dict.fromkeys([*settings.get("scoring", ()), *sorted({scoring for scoring, _ in held})]):
        for told in (scoring, FORCED_MATCH) if scoring == "likelihood" else (scoring,):
            for length in sorted(length for known, length in held if known == scoring):
                made = summarise(held[scoring, length], told, against=against, skipped=settings.get("skipped"))
                found.append(replace(made, length=length))
    return found


def _chosen(results: Iterable[Result], scoring: str) -> list[Result]:
    """The results under a scoring; the forced match is part of what a likelihood saw."""
    if scoring != FORCED_MATCH:
        return [result for result in results if result.scoring == scoring]
    return [
        replace(result, value=None if result.value is None else float(result.detail[FORCED_MATCH]))
        for result in results
        if result.scoring == "likelihood"
    ]


def _by_eviction(label: str) -> tuple[int, float]:
    """Ratios from mild to harsh, then numbers of entries from many to few."""
    return (1, -float(label.split()[1])) if label.startswith("keep ") else (0, float(label))


def _common_items(groups: dict[tuple[str, str], list[Result]]) -> set[tuple[str, str]]:
    """The (task, item) pairs that every row holds at every budget: a run cut short leaves some rows ahead."""
    each = [{(result.task, result.item) for result in group} for group in groups.values()]
    common = set.intersection(*each)
    if not common:
        raise RunError("No item was measured for every policy yet; run the same command again to complete it.")
    return common


def _scores(group: Sequence[Result], common: set[tuple[str, str]]) -> TaskScores:
    """Scores by task and item, draws of the random line averaged."""
    found: dict[str, dict[str, list[float]]] = {}
    for result in group:
        if (result.task, result.item) in common and result.value is not None:
            found.setdefault(result.task, {}).setdefault(result.item, []).append(result.value)
    return {
        task: {item: sum(values) / len(values) for item, values in by_item.items()} for task, by_item in found.items()
    }


def _cell(
    group: Sequence[Result], common: set[tuple[str, str]], clusters: Mapping[str, str], confidence: float
) -> CellSummary:
    rejected = next((result.reason for result in group if result.state != "ok"), "")
    if rejected:
        return CellSummary(None, {}, 0.0, False, rejected)
    scores = _scores(group, common)
    return CellSummary(
        score=macro_mean(scores, clusters, confidence=confidence),
        kl_by_task=_kl_by_task(group, common),
        by_task={task: sum(by_item.values()) / len(by_item) for task, by_item in scores.items()},
        kept=sum(result.kept_bytes for result in group) / sum(result.full_bytes for result in group),
        forced=all(result.forced for result in group),
        rejected="",
        note=next((str(result.detail["allocation"]) for result in group if "allocation" in result.detail), ""),
    )


def _kl_by_task(group: Sequence[Result], common: set[tuple[str, str]]) -> dict[str, float]:
    measured = [replace(each, value=float(each.detail["kl"])) for each in group if "kl" in each.detail]
    scores = _scores(measured, common)
    return {task: sum(by_item.values()) / len(by_item) for task, by_item in scores.items()}


def _compared(
    row: Row,
    against: str,
    groups: dict[tuple[str, str], list[Result]],
    common: set[tuple[str, str]],
    clusters: Mapping[str, str],
    confidence: float,
) -> Row:
    cells = {}
    for budget, cell in row.cells.items():
        other = groups.get((against, FULL_BUDGET if against == "full" else budget))
        usable = cell.score is not None and other is not None and all(result.state == "ok" for result in other)
        if usable and other is not None and row.label != against:
            mine = groups[row.label, budget]
            difference = macro_difference(
                _scores(mine, common), _scores(other, common), clusters, confidence=confidence
            )
            cell = replace(cell, difference=difference)
        cells[budget] = cell
    return Row(row.label, row.reference, cells)
