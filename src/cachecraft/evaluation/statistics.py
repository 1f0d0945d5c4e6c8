"""Intervals, tests and summaries of per-item scores: how far a difference between policies can be believed.

Every comparison is paired: both sides were measured on the same items, and only the differences count. Scores
come as ``{task: {item id: score}}`` (`by_task` makes that from rows), of one task as ``{item id: score}``;
their order does not matter. This file reads no run and prints nothing; the arithmetic of the draws is
`cachecraft.evaluation.resampling`'s, what is drawn together `cachecraft.evaluation.strata`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from cachecraft.errors import RunError
from cachecraft.evaluation.resampling import (
    PERMUTATIONS,
    Floats,
    bootstrap_mean,
    sign_flip_p,
    tango_interval,
    wilson,
)
from cachecraft.evaluation.strata import Block, blocks_of, bootstrap, difference_limits, proportion_limits

ItemScores = Mapping[str, float]
TaskScores = Mapping[str, ItemScores]

SURE = 0.05  # p below which a difference counts as shown
ELIGIBLE_GAP = 0.2  # full minus random from which a task says anything about what a policy recovers


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        estimate: The mean, the mean difference or the macro average of either.
        low, high: The limits of the two-sided confidence interval.
        n: How many items it rests on.
        method: How interval and p were computed, in words.
        p: Two-sided p-value of "no difference"; None where nothing was tested.
    """

    estimate: float
    low: float
    high: float
    n: int
    method: str
    p: float | None = None

    @property
    def sure(self) -> bool:
        """Whether a difference is shown, taken by itself: the interval is on one side of 0 and p is small."""
        return (self.low > 0 or self.high < 0) and (self.p is None or self.p < SURE)


@dataclass(frozen=True)
class NonInferiority:
    """Whether a policy is at most `margin` worse; `low`, the difference's one-sided limit, decides."""

    accepted: bool
    margin: float
    difference: float
    low: float
    n: int


def by_task(scores: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Group scores keyed by (task, item id) into ``{task: {item id: score}}``."""
    grouped: dict[str, dict[str, float]] = {}
    for (task, item), score in scores.items():
        grouped.setdefault(task, {})[item] = score
    return grouped


def mean_interval(values: Iterable[float], *, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """The mean of one task's scores: Wilson's interval for 0/1 scores, else a BCa bootstrap.

    Raises:
        RunError: There is no score, or one is not finite.
    """
    scores = finite(sorted(values))
    mean, n = float(scores.mean()), len(scores)
    if is_binary(scores):
        return Estimate(mean, *wilson(mean, n, confidence), n, "Wilson interval")
    low, high, method = bootstrap_mean(scores, confidence, seed)
    return Estimate(mean, low, high, n, method)


def paired_difference(
    a: ItemScores, b: ItemScores, *, confidence: float = 0.95, seed: int = 0, permutations: int = PERMUTATIONS
) -> Estimate:
    """Mean of ``a - b`` over one task's items.

    0/1 scores: exact McNemar test and Tango's score interval, which stays wide when no item differs. Graded
    scores: paired BCa bootstrap and a permutation test that swaps a and b within items.

    Args:
        a: Scores of one side.
        b: Scores of the other, on the same items.
        confidence: Of the two-sided interval.
        seed: Of the bootstrap and the permutations.
        permutations: How many, where there are any.

    Raises:
        RunError: The items differ, there are none, or a score is not finite.
    """
    left, right = paired(a, b)
    difference = left - right
    mean, n = float(difference.mean()), len(difference)
    if is_binary(left) and is_binary(right):
        wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
        p = float(stats.binomtest(wins, wins + losses, 0.5).pvalue) if wins + losses else 1.0
        low, high = tango_interval(wins, losses, n, confidence)
        return Estimate(mean, low, high, n, "exact McNemar test, Tango score interval", p)
    low, high, method = bootstrap_mean(difference, confidence, seed)
    p = sign_flip_p(difference / n, seed, permutations)
    return Estimate(mean, low, high, n, f"{method}, paired permutation test", p)


def macro_mean(
    scores: TaskScores, clusters: Mapping[str, str] | None = None, *, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """Plain mean of the tasks' means.

    One task whose items stand for themselves has the interval of `mean_interval`. Of several tasks, or with documents,
    0/1 scores get one that stays wide where every answer is right (`proportion_limits`), graded ones a bootstrap that
    resamples the items or documents of each task (percentiles).

    Args:
        scores: By task and item.
        clusters: As in `macro_difference`.
        confidence: Of the two-sided interval.
        seed: Of the bootstrap.

    Raises:
        RunError: There is no task, a task has no score, or a score is not finite.
    """
    held = {task: finite(list(by_item.values())) for task, by_item in scores.items()}
    blocks = blocks_of(scores, clusters or {})
    if len(blocks) == 1 and blocks[0].alone:
        (own,) = held.values()
        return mean_interval(own.tolist(), confidence=confidence, seed=seed)
    mean, n = float(np.mean([held[task].mean() for task in sorted(held)])), sum(map(len, held.values()))
    if all(map(is_binary, held.values())):
        low, high = proportion_limits(blocks, confidence)
        return Estimate(mean, min(low, mean), max(high, mean), n, "adjusted interval of proportions")
    return Estimate(mean, *bootstrap(blocks, confidence, seed), n, "stratified bootstrap")


def macro_difference(
    a: TaskScores,
    b: TaskScores,
    clusters: Mapping[str, str] | None = None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> Estimate:
    """Macro mean of a minus that of b, from the per-item differences.

    One task whose items stand for themselves is `paired_difference`. Of several tasks, or with documents, p is that of
    a permutation test which swaps a and b within items; 0/1 scores get an interval that stays wide where no item
    differs (`difference_limits`), graded ones a bootstrap within each task (percentiles).

    Args:
        a: Scores of one side.
        b: Scores of the other, on the same items of the same tasks.
        clusters: Item id to the document that it shares with others; such items are resampled and swapped
            together, in all tasks that hold some. An item that is missing here, or has ``""``, stands for itself.
        confidence: Of the two-sided interval.
        seed: Of the bootstrap and the permutations.
        permutations: How many; no p from them is below one in so many and one.

    Raises:
        RunError: Tasks or items differ, there are none, or a score is not finite.
    """
    blocks = difference_blocks(a, b, clusters)
    if len(blocks) == 1 and blocks[0].alone:
        (task,) = a
        return paired_difference(a[task], b[task], confidence=confidence, seed=seed, permutations=permutations)
    strata = sum(each.strata for each in blocks)
    shares = np.concatenate([each.shares for each in blocks]) / strata
    mean, n, p = float(shares.sum()), sum(map(len, a.values())), sign_flip_p(shares, seed, permutations)
    if all(is_binary(finite(list(own.values()))) for side in (a, b) for own in side.values()):
        low, high = difference_limits(blocks, confidence)
        method = "adjusted interval of paired proportions, paired permutation test"
        return Estimate(mean, min(low, mean), max(high, mean), n, method, p)
    method = "stratified paired bootstrap, paired permutation test"
    return Estimate(mean, *bootstrap(blocks, confidence, seed), n, method, p)


def non_inferior(
    policy: TaskScores,
    full: TaskScores,
    margin: float,
    clusters: Mapping[str, str] | None = None,
    *,
    alpha: float = 0.05,
    seed: int = 0,
) -> NonInferiority:
    """Whether a policy loses less than `margin` to the full cache: what "lossless" means here.

    The one-sided lower limit of the macro difference must lie above ``-margin``. Where not one document lost,
    a bootstrap sees no risk at all; the limit is then lowered by the largest loss rate that n documents with
    no loss leave possible, ``1 - alpha**(1/n)``, so that a handful of items never proves anything.

    Raises:
        RunError: The margin is not above 0, or the scores cannot be paired.
    """
    if not margin > 0:
        raise RunError(f"A non-inferiority margin must be above 0, not {margin}.")
    difference = macro_difference(policy, full, clusters, confidence=1 - 2 * alpha, seed=seed)
    low = difference.low
    blocks = difference_blocks(policy, full, clusters)
    if all((each.sums >= 0).all() for each in blocks):
        independent = min(len(each.sums) * len(policy) / each.strata for each in blocks)
        low = min(low, difference.estimate - (1 - alpha ** (1 / independent)))
    return NonInferiority(low > -margin, margin, difference.estimate, low, difference.n)


def eligible_tasks(full: Mapping[str, float], random: Mapping[str, float]) -> tuple[str, ...]:
    """The tasks whose full-cache mean is at least `ELIGIBLE_GAP` above random's, both from validation."""
    if full.keys() != random.keys():
        raise RunError("full and random were measured on different tasks; measure both on all of them.")
    return tuple(sorted(task for task in full if full[task] - random[task] >= ELIGIBLE_GAP - 1e-9))


def recovered(
    policy: Mapping[str, float],
    random: Mapping[str, float],
    full: Mapping[str, float],
    eligible: Iterable[str],
) -> float | None:
    """How much of the way from random eviction to the full cache a policy keeps: 0 is random, 1 is full.

    Args:
        policy: Mean score of each task.
        random: The same for random eviction.
        full: The same for the full cache.
        eligible: What `eligible_tasks` returned for the validation split.

    Returns:
        The share, which may lie outside [0, 1]; None, shown as "—", when no task is eligible or full is not
        above random on these items.

    Raises:
        RunError: An eligible task is missing on one side.
    """
    tasks = sorted(set(eligible))
    for name, means in (("the policy", policy), ("random", random), ("full", full)):
        if missing := [task for task in tasks if task not in means]:
            raise RunError(f"{', '.join(missing)} is eligible but {name} was not measured on it.")
    gap = sum(full[task] - random[task] for task in tasks)
    return sum(policy[task] - random[task] for task in tasks) / gap if gap > 1e-9 else None


def finite(values: Sequence[float]) -> Floats:
    """The scores as an array; refuses an empty list and anything that is not a finite number."""
    scores = np.asarray(values, dtype=np.float64)
    if not scores.size:
        raise RunError("There is no score to average.")
    if not np.isfinite(scores).all():
        raise RunError(f"{int((~np.isfinite(scores)).sum())} of {scores.size} scores are not finite numbers.")
    return scores


def is_binary(scores: Floats) -> bool:
    """Whether every score is 0 or 1."""
    return bool(np.isin(scores, (0.0, 1.0)).all())


def paired(a: ItemScores, b: ItemScores) -> tuple[Floats, Floats]:
    """Both sides' scores in one order of the items, which must be the same on both."""
    if a.keys() != b.keys():
        raise RunError(
            "Only policies measured on the same items can be compared; "
            f"{len(a.keys() ^ b.keys())} items were measured for one side only."
        )
    items = sorted(a)
    return finite([a[item] for item in items]), finite([b[item] for item in items])


def difference_blocks(a: TaskScores, b: TaskScores, clusters: Mapping[str, str] | None) -> list[Block]:
    """The differences of the items, those of one document together."""
    if a.keys() != b.keys() or not a:
        raise RunError(f"The two sides share no set of tasks: {sorted(a)} and {sorted(b)}.")
    differences = {}
    for task in a:
        left, right = paired(a[task], b[task])
        differences[task] = dict(zip(sorted(a[task]), (left - right).tolist(), strict=True))
    return blocks_of(differences, clusters or {})
