"""What an average hides: answers lost from the cache, parts that are dropped, scores that rise with eviction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

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
        average = sum(each.kept_bytes for each in own) / sum(each.full_bytes for each in own)
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


def rises(results: Iterable[Result], scoring: str) -> list[str]:
    """A sentence for each step at which a policy's mean score on a task is higher after evicting more."""
    means: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for (policy, budget, task), own in _cells(results, scoring).items():
        kept = sum(each.kept_bytes for each in own) / sum(each.full_bytes for each in own)
        means.setdefault((policy, task), {})[budget] = kept, fmean(each.value or 0.0 for each in own)
    said = []
    for (policy, task), by_budget in means.items():
        ordered = sorted(by_budget.items(), key=lambda each: -each[1][0])
        for (more, (_, before)), (less, (_, after)) in pairwise(ordered):
            if after > before + 1e-9:
                said.append(
                    f"{policy} on {task} scores {after:.2f} at {less} but {before:.2f} at {more}, where more is kept."
                )
    return said


def _cells(results: Iterable[Result], scoring: str) -> dict[tuple[str, str, str], list[Result]]:
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for each in results:
        if each.scoring == scoring and each.value is not None:
            groups.setdefault((each.label, each.budget, each.task), []).append(each)
    return groups


def _vital(result: Result) -> str:
    """The segment whose survival is told: the answer, else the needle, "" if there is neither."""
    survived = result.detail.get("retention", {}).get("survived", {})
    return next((name for name in ("answer", "needle") if name in survived), "")


def _mean(values: Iterable[float]) -> float | None:
    held: Sequence[float] = list(values)
    return fmean(held) if held else None
