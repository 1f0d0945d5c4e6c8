"""What an average hides: answers lost from the cache, parts that are dropped, scores that rise with eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from cachecraft.evaluation.comparison import FULL, FULL_BUDGET
from cachecraft.evaluation.rows import rejections
from cachecraft.evaluation.store import Result

_WATCHED = ("template", "instruction", "first_document", "last_document")
_NEGLECTED = 0.5  # kept at less than this part of what the policy keeps on average


@dataclass(frozen=True)
class Survival:
    """How often what the answer rests on was still there.

    Attributes:
        policy, budget, task: The cell.
        items: Items that say where their answer stands.
        survived: Share of them whose answer tokens were kept, in every layer by at least one kv head each.
        heads: Mean share of the heads that kept all of them.
        score_if_survived, score_if_not: Mean score of either kind; None if there is none.
    """

    policy: str
    budget: str
    task: str
    items: int
    survived: float
    heads: float
    score_if_survived: float | None
    score_if_not: float | None


def survivals(results: Iterable[Result], scoring: str) -> list[Survival]:
    """The survival of answers for each policy, budget and task whose items say where the answer stands.

    Where there is no segment ``answer`` that of the needle counts.
    """
    found = []
    for (policy, budget, task), own in _cells(results, scoring).items():
        seen = [(each, name) for each in own if (name := _vital(each))]
        if not seen:
            continue
        there = [each.detail["retention"]["survived"][name] for each, name in seen]
        values = [(each.value or 0.0, alive) for (each, _), alive in zip(seen, there, strict=True)]
        found.append(
            Survival(
                policy,
                budget,
                task,
                items=len({each.item for each, _ in seen}),
                survived=fmean(there),
                heads=fmean(each.detail["retention"]["whole"][name] for each, name in seen),
                score_if_survived=_mean(value for value, alive in values if alive),
                score_if_not=_mean(value for value, alive in values if not alive),
            )
        )
    return found


def neglected(results: Iterable[Result], scoring: str) -> list[str]:
    """A sentence for each part of the prompts that a policy keeps at less than half of its own average."""
    said = []
    for (policy, budget, task), own in _cells(results, scoring).items():
        if budget == "0":
            continue
        average = _kept(own)
        for name in _WATCHED:
            shares = [
                each.detail["retention"]["segments"][name]["kept"]
                for each in own
                if name in each.detail.get("retention", {}).get("segments", {})
            ]
            if shares and fmean(shares) < _NEGLECTED * average:
                said.append(
                    f"{policy} at {budget} on {task} keeps {100 * fmean(shares):.0f} % of the {name.replace('_', ' ')} "
                    f"but {100 * average:.0f} % of everything."
                )
    return said


def rises(results: Iterable[Result], scoring: str, length_of: Callable[[Result], int] = lambda _: 0) -> list[str]:
    """A sentence for each step at which a policy's mean score on a task is higher after evicting more.

    The first step is from the full cache, if it was measured; each compares the items that both of its sides have.

    Args:
        results: Of one run.
        scoring: Which of its scorings.
        length_of: Tokens of a result's item; lengths are kept apart.
    """
    cells: dict[tuple[str, str, int], dict[str, list[Result]]] = {}
    for (policy, budget, task), own in _cells(results, scoring).items():
        for each in own:
            cells.setdefault((policy, task, length_of(each)), {}).setdefault(budget, []).append(each)
    several = len({length for _, _, length in cells}) > 1
    said = []
    for (policy, task, length), by_budget in cells.items():
        if policy == FULL:
            continue
        ordered = sorted(by_budget.items(), key=lambda each: -_kept(each[1]))
        where = f"{policy} on {task}" + (f" at {length} tokens" if several else "")
        for (more, before), (less, after) in pairwise([*cells.get((FULL, task, length), {}).items(), *ordered]):
            high, low = _on_common_items(after, before)
            if high > low + 1e-9:
                beside = "with the full cache" if more == FULL_BUDGET else f"at {more}, where more is kept"
                said.append(f"{where} scores {high:.2f} at {less} but {low:.2f} {beside}.")
    return said


def _kept(own: Sequence[Result]) -> float:
    return sum(each.kept_bytes for each in own) / sum(each.full_bytes for each in own)


def _on_common_items(a: Iterable[Result], b: Iterable[Result]) -> tuple[float, float]:
    """Mean scores of both sides over the items that both have; equal if there are none."""
    sides: list[dict[str, list[float]]] = []
    for side in (a, b):
        by_item: dict[str, list[float]] = {}
        for each in side:
            by_item.setdefault(each.item, []).append(each.value or 0.0)
        sides.append(by_item)
    both = sides[0].keys() & sides[1].keys()
    left, right = (fmean(fmean(side[item]) for item in both) if both else 0.0 for side in sides)
    return left, right


def _cells(results: Iterable[Result], scoring: str) -> dict[tuple[str, str, str], list[Result]]:
    """The results by policy, budget and task, without policies and budgets that were rejected on some item."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    held = [each for each in results if each.scoring == scoring]
    rejected = rejections(held)
    for each in held:
        if each.value is not None and (each.label, each.budget) not in rejected:
            groups.setdefault((each.label, each.budget, each.task), []).append(each)
    return groups


def _vital(result: Result) -> str:
    """The segment whose survival is told: the answer, else the needle, "" if there is neither."""
    survived = result.detail.get("retention", {}).get("survived", {})
    return next((name for name in ("answer", "needle") if name in survived), "")


def _mean(values: Iterable[float]) -> float | None:
    held: Sequence[float] = list(values)
    return fmean(held) if held else None
