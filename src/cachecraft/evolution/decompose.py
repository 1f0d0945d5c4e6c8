"""How much a scorer is worth, and how much a selector, from scores of every pair of them on the same items.

The question of the CacheCraft paper's ablation (arXiv 2608.14555): is it what entries are scored by, or how the scores
become a choice? Both are told in points against a baseline, averaged over the other side, with paired intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cachecraft.errors import RunError
from cachecraft.evaluation.statistics import Estimate, TaskScores, macro_difference, macro_mean

Grid = Mapping[tuple[str, str], TaskScores]  # scores by scorer and selector


@dataclass(frozen=True)
class Worth:
    """What one side brings against its baseline, averaged over the other side.

    Attributes:
        kind: ``"scorer"`` or ``"selector"``.
        name, baseline: What is compared.
        points: The difference, in the scores' units.
    """

    kind: str
    name: str
    baseline: str
    points: Estimate


def worth(grid: Grid, *, scorer: str, selector: str, clusters: Mapping[str, str] | None = None) -> list[Worth]:
    """Compare every scorer with a baseline scorer and every selector with a baseline selector.

    Args:
        grid: Scores of every pair, on the same items.
        scorer: The baseline scorer, such as ``"random"``.
        selector: The baseline selector, such as ``"tokens"``.
        clusters: Item id to the document that it shares with others.

    Raises:
        RunError: A pair is missing.
    """
    scorers = list(dict.fromkeys(name for name, _ in grid))
    selectors = list(dict.fromkeys(name for _, name in grid))
    missing = [f"{a} × {b}" for a in [*scorers, scorer] for b in [*selectors, selector] if (a, b) not in grid]
    if missing:
        raise RunError(f"The pairs {', '.join(dict.fromkeys(missing))} were not measured; measure every pair.")
    found = []
    for name in scorers:
        if name != scorer:
            ours, theirs = (_mean([grid[each, own] for own in selectors]) for each in (name, scorer))
            found.append(Worth("scorer", name, scorer, macro_difference(ours, theirs, clusters)))
    for name in selectors:
        if name != selector:
            ours, theirs = (_mean([grid[own, each] for own in scorers]) for each in (name, selector))
            found.append(Worth("selector", name, selector, macro_difference(ours, theirs, clusters)))
    return found


def means(grid: Grid, clusters: Mapping[str, str] | None = None) -> dict[tuple[str, str], Estimate]:
    """The macro mean of each pair."""
    return {pair: macro_mean(scores, clusters) for pair, scores in grid.items()}


def _mean(parts: Sequence[TaskScores]) -> TaskScores:
    """Item by item."""
    first = parts[0]
    return {
        task: {item: sum(part[task][item] for part in parts) / len(parts) for item in items}
        for task, items in first.items()
    }
