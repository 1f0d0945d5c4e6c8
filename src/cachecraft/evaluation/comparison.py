"""Compares the rows of one or more runs pair by pair on the same items, corrected for how many pairs there are.

It reads runs and prints nothing; `cachecraft.reporting.comparison` puts the outcome into words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

from cachecraft.errors import CacheCraftError, RunError, UnknownNameError
from cachecraft.evaluation.corrections import benjamini_hochberg, holm
from cachecraft.evaluation.resampling import PERMUTATIONS
from cachecraft.evaluation.rows import clusters_of, folder_names, names_in_folders, rejections, scoring_of
from cachecraft.evaluation.statistics import (
    SURE,
    Estimate,
    NonInferiority,
    TaskScores,
    macro_difference,
    macro_mean,
    non_inferior,
)
from cachecraft.evaluation.store import Result, read_evaluation

FULL, FULL_BUDGET = "full", "0"
CORRECTIONS = {"holm": holm, "bh": benjamini_hochberg}
_SAME = ("model", "revision", "dtype", "regime", "split")  # in which runs must agree to be compared


@dataclass(frozen=True)
class Cells:
    """Scores of the rows of some runs under one scoring.

    Attributes:
        settings: What the runs agree in.
        scores: For each row and budget the scores by task and item; a task at several lengths counts as several.
        clusters: Item id to the document of its task that it shares with others, or with itself at another length.
        references: Rows that are reference lines.
        rejected: Row and budget of what was rejected on some item, with the reason; its other items count as little.
    """

    settings: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, TaskScores]]
    clusters: Mapping[str, str]
    references: frozenset[str]
    rejected: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def at(self, row: str, budget: str) -> TaskScores | None:
        """A row's scores at a budget; the full cache's whatever the budget is."""
        return self.scores[row].get(FULL_BUDGET if row == FULL else budget)

    @property
    def budgets(self) -> tuple[str, ...]:
        """Every budget but the full cache's, ratios ascending, then numbers of entries descending."""
        held = {budget for row, by_budget in self.scores.items() if row != FULL for budget in by_budget}
        return tuple(sorted(held, key=lambda b: (1, -float(b[5:])) if b.startswith("keep ") else (0, float(b))))


@dataclass(frozen=True)
class Compared:
    """Two rows at one budget.

    Attributes:
        a, b: The rows.
        budget: At which they were compared.
        difference: a minus b, with the interval and p of this comparison alone.
        p: Adjusted for all comparisons made.
    """

    a: str
    b: str
    budget: str
    difference: Estimate
    p: float

    @property
    def shown(self) -> bool:
        """Whether one is better: the adjusted p is small and the interval is on one side of 0."""
        return self.p < SURE and (self.difference.low > 0 or self.difference.high < 0)


def read_cells(folders: Sequence[Path], scoring: str = "") -> tuple[Cells, str]:
    """Bring the results of runs together.

    Args:
        folders: Run folders; programs that share a label are rows of their own, called by it and their folder's name,
            or a short id where that does not tell them apart.
        scoring: Which of their scorings; "" for the first that the first run's results hold.

    Returns:
        The cells, and the scoring.

    Raises:
        RunError: A folder is no evaluation, runs are of different models or regimes, or hold nothing of the scoring.
    """
    settings: dict[str, Any] = {}
    held: list[tuple[str, Result, str]] = []
    for folder, called in zip(folders, folder_names(folders), strict=True):
        store = read_evaluation(folder)
        results, texts, own = store.results(), store.item_texts(), store.settings
        store.close()
        settings = settings or own
        for name in _SAME:
            if own.get(name) != settings.get(name):
                raise RunError(
                    f"{folders[0]} was measured with {name} {settings.get(name)!r} and {folder} with "
                    f"{own.get(name)!r}: only runs that agree in it can be compared."
                )
        scoring = scoring or scoring_of(own, results)
        lengths = own["length"]
        held.extend(
            (called, each, str(texts.get(each.item, {}).get("length", lengths[0])))
            for each in results
            if each.scoring == scoring
        )
    if not any(each.value is not None for _, each, _ in held):
        raise RunError(f"{', '.join(map(str, folders))} hold no results under scoring {scoring!r}.")
    return _cells(settings, held), scoring


def _cells(settings: dict[str, Any], held: Sequence[tuple[str, Result, str]]) -> Cells:
    where: dict[tuple[str, str], set[str]] = {}
    for folder, each, _ in held:
        where.setdefault((each.label, each.policy), set()).add(folder)
    names = names_in_folders(where)
    rejected = rejections(replace(each, label=names[each.label, each.policy]) for _, each, _ in held)
    several = len({length for _, _, length in held}) > 1
    values: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for _, each, length in held:
        row = names[each.label, each.policy]
        if each.value is None or (row, each.budget) in rejected:
            continue
        task = f"{each.task} at {length}" if several else each.task
        by_item = values.setdefault(row, {}).setdefault(each.budget, {}).setdefault(task, {})
        by_item.setdefault(each.item, []).append(each.value)
    scores = {
        row: {
            budget: {task: {item: sum(v) / len(v) for item, v in items.items()} for task, items in by_task.items()}
            for budget, by_task in by_budget.items()
        }
        for row, by_budget in values.items()
    }
    references = frozenset(names[each.label, each.policy] for _, each, _ in held if each.reference)
    return Cells(settings, scores, clusters_of(each for _, each, _ in held), references, rejected)


def pairs_of(cells: Cells, against: str = "") -> list[tuple[str, str]]:
    """The rows to compare: all pairs of policies, or all others with one row.

    Raises:
        UnknownNameError: There is no row called `against`.
        RunError: There is only one row.
    """
    policies = [row for row in cells.scores if row not in cells.references]
    if against:
        if against not in cells.scores:
            raise UnknownNameError("row of these runs", against, cells.scores)
        pairs = [(row, against) for row in policies if row != against]
    else:
        pairs = list(combinations(policies, 2))
    if not pairs:
        raise RunError("There are no two policies to compare; measure another one, or name a row with --against.")
    return pairs


def compare(cells: Cells, pairs: Sequence[tuple[str, str]], *, correction: str = "bh", seed: int = 0) -> list[Compared]:
    """Compare pairs at every budget at which both were measured on common items.

    The difference is the macro mean over tasks, with the interval and p of `macro_difference`; p is adjusted for all of
    them together. Permutations are as many as it takes for one small p to survive that.

    Raises:
        CacheCraftError: There is no such correction.
        RunError: No pair has an item in common.
    """
    if correction not in CORRECTIONS:
        raise CacheCraftError(f"There is no correction {correction!r}; choose {' or '.join(CORRECTIONS)}.")
    asked = [
        (a, b, budget, both)
        for budget in cells.budgets
        for a, b in pairs
        if (both := common(cells.at(a, budget), cells.at(b, budget))) is not None
    ]
    permutations = ceil(2 * len(asked) / SURE)
    found = []
    for a, b, budget, both in asked:
        difference = macro_difference(*both, cells.clusters, seed=seed)
        # Only what came out at the least p that there is may be smaller yet: it alone is worth counting longer.
        if permutations > PERMUTATIONS and difference.p is not None and difference.p <= 1.5 / (1 + PERMUTATIONS):
            difference = macro_difference(*both, cells.clusters, seed=seed, permutations=permutations)
        found.append(Compared(a, b, budget, difference, difference.p if difference.p is not None else 1.0))
    if not found:
        raise RunError("No two of these rows were measured on the same items at the same budget.")
    adjusted = CORRECTIONS[correction]([each.p for each in found])
    return [replace(each, p=p) for each, p in zip(found, adjusted, strict=True)]


def near_full(cells: Cells, margin: float, *, seed: int = 0) -> list[tuple[str, str, NonInferiority]]:
    """For each policy and budget, whether it is shown to lose less than a margin to the full cache.

    The error of 5 % is shared among all of these questions (Bonferroni).

    Args:
        cells: Of the runs.
        margin: In the unit of the scores, above 0.
        seed: Of the bootstrap.
    """
    asked = []
    for budget in cells.budgets:
        for row in cells.scores:
            if FULL in cells.scores and row not in cells.references:
                both = common(cells.at(row, budget), cells.at(FULL, budget))
                if both is not None:
                    asked.append((row, budget, both))
    return [
        (row, budget, non_inferior(*both, margin, cells.clusters, alpha=SURE / len(asked), seed=seed))
        for row, budget, both in asked
    ]


def means(cells: Cells) -> dict[str, dict[str, Estimate]]:
    """Each row's macro mean at each budget, over the items that it was measured on."""
    return {
        row: {budget: macro_mean(scores, cells.clusters) for budget, scores in own.items()}
        for row, own in cells.scores.items()
    }


def common(a: TaskScores | None, b: TaskScores | None) -> tuple[TaskScores, TaskScores] | None:
    """Both sides' scores on the items that both have; None if there are none."""
    if a is None or b is None:
        return None
    both = {task: a[task].keys() & b[task].keys() for task in a if task in b}
    left = {task: {item: a[task][item] for item in items} for task, items in both.items() if items}
    right = {task: {item: b[task][item] for item in items} for task, items in both.items() if items}
    return (left, right) if left else None
