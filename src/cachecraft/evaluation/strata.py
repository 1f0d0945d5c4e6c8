"""Which items are drawn and swapped together: documents, within a task and over the tasks that share them.

A macro average weighs tasks alike, each of them a stratum. Mostly a stratum stands alone and every item for itself;
items of one document are one unit, and strata that hold the same documents (a benchmark's samples at several lengths)
make one block, whose units are drawn once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from cachecraft.errors import RunError
from cachecraft.evaluation.resampling import RESAMPLES, Floats, percentiles, resampled_means, tango_interval, wilson


@dataclass(frozen=True, eq=False)
class Block:
    """Strata that share units, of U units and K strata.

    Attributes:
        sums: (U, K) sum of the values of a unit's items.
        sizes: (U, K) how many items they are.
        gains, losses: Sum of the positive and of the negative values, relative to each stratum's items, over strata.
    """

    sums: Floats
    sizes: Floats
    gains: float
    losses: float

    @property
    def strata(self) -> int:
        """K."""
        return int(self.sums.shape[1])

    @property
    def alone(self) -> bool:
        """Whether it is one stratum in which every item stands for itself."""
        return self.strata == 1 and bool((self.sizes == 1).all())

    @property
    def shares(self) -> Floats:
        """(U,) what each unit adds to the sum of the strata's means."""
        return np.asarray((self.sums / self.sizes.sum(axis=0)).sum(axis=1))

    def independent(self, spread: float) -> float:
        """How many independent items the units are worth: the effective sample size of cluster samples.

        Franco, Little, Louis and Slud, Journal of Survey Statistics and Methodology 7, 2019. Units that do not differ
        show no variance, and count one each.

        Args:
            spread: Variance of a single value.
        """
        units, items = len(self.sums), float(self.sizes.sum())
        if self.alone or units == 1:
            return float(units)
        totals = self.sizes.sum(axis=0)
        apart = ((self.sums - self.sizes * (self.sums.sum(axis=0) / totals)) / totals).mean(axis=1)
        variance = float((apart**2).sum()) * units / (units - 1)
        return max(1.0, min(spread / variance, items)) if min(spread, variance) > 1e-12 else float(units)

    @property
    def proportion(self) -> tuple[float, float]:
        """Of 0/1 scores the mean, and how many independent items it is worth."""
        mean = self.gains / self.strata
        return mean, self.independent(mean * (1 - mean))

    @property
    def changes(self) -> tuple[float, float, float]:
        """Of differences of 0/1 scores the shares of wins and losses, and how many independent items they are worth."""
        wins, losses = self.gains / self.strata, self.losses / self.strata
        return wins, losses, self.independent(wins + losses - (wins - losses) ** 2)


def blocks_of(values: Mapping[str, Mapping[str, float]], clusters: Mapping[str, str]) -> list[Block]:
    """Put the strata that share units together.

    Args:
        values: Finite numbers by stratum and item.
        clusters: Item id to the name of its unit; an item that is missing, or has ``""``, is a unit by itself.

    Raises:
        RunError: There is no stratum, or one has no item.
    """
    if not values or not all(values.values()):
        raise RunError("There is no score to average." if values else "There is no task to average over.")
    units = {
        stratum: [clusters.get(item) or f"\0{stratum}\0{item}" for item in sorted(values[stratum])]
        for stratum in sorted(values)
    }
    return [_block(values, {stratum: units[stratum] for stratum in group}) for group in _connected(units)]


def _connected(units: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The strata in groups that share no unit with each other."""
    groups: list[tuple[set[str], list[str]]] = []
    for stratum, own in units.items():
        joined = set(own)
        names = [stratum]
        apart = []
        for held, others in groups:
            if held.isdisjoint(own):
                apart.append((held, others))
            else:
                joined, names = joined | held, [*others, *names]
        groups = [*apart, (joined, names)]
    return [sorted(names) for _, names in groups]


def _block(values: Mapping[str, Mapping[str, float]], units: Mapping[str, Sequence[str]]) -> Block:
    names, place = np.unique([name for own in units.values() for name in own], return_inverse=True)
    column = np.repeat(np.arange(len(units)), [len(own) for own in units.values()])
    numbers = np.array([values[stratum][item] for stratum in units for item in sorted(values[stratum])], np.float64)
    shape = (len(names), len(units))
    cell = np.ravel_multi_index((place.ravel(), column), shape)
    sizes = np.bincount(cell, minlength=math.prod(shape)).reshape(shape).astype(np.float64)
    sums = np.bincount(cell, weights=numbers, minlength=math.prod(shape)).reshape(shape).astype(np.float64)
    relative = numbers / sizes.sum(axis=0)[column]
    return Block(sums, sizes, float(relative[relative > 0].sum()), float(-relative[relative < 0].sum()))


def bootstrap(blocks: Sequence[Block], confidence: float, seed: int) -> tuple[float, float]:
    """Percentile limits of the mean over all strata, the units of each block drawn with replacement.

    A block of one unit says nothing of its own spread; such blocks are drawn from each other, so that what lies between
    their tasks counts, too, and the interval is rather too wide than a point (Cochran's collapsed strata).
    """
    rng = np.random.default_rng(seed)
    several = [each for each in blocks if len(each.sums) > 1]
    single = np.array([each.shares.sum() for each in blocks if len(each.sums) == 1])
    draws = sum((resampled_means(each.sums, each.sizes, rng) for each in several), np.zeros(RESAMPLES))
    if len(single):
        draws = draws + single[rng.integers(0, len(single), (RESAMPLES, len(single)))].sum(axis=1)
    return percentiles(draws / sum(each.strata for each in blocks), confidence)


def proportion_limits(blocks: Sequence[Block], confidence: float) -> tuple[float, float]:
    """Limits of the macro mean of 0/1 scores, honest where all are right: Wilson's of one block.

    Of several, Price and Bonett's, Computational Statistics and Data Analysis 45, 2004: four items more, half of them
    right, are shared among the blocks, and the normal interval of these proportions is taken.
    """
    if len(blocks) == 1:
        return wilson(*blocks[0].proportion, confidence)
    middle = variance = 0.0
    for weight, each in _weighted(blocks):
        mean, items = each.proportion
        n = items + 4 / len(blocks)
        share = (items * mean + 2 / len(blocks)) / n
        middle, variance = middle + weight * share, variance + weight**2 * share * (1 - share) / n
    half = float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(variance)
    return max(0.0, middle - half), min(1.0, middle + half)


def difference_limits(blocks: Sequence[Block], confidence: float) -> tuple[float, float]:
    """Limits of the macro difference of 0/1 scores, honest where no item differs or all do: Tango's of one block.

    Of several, Bonett and Price's, Journal of Educational and Behavioral Statistics 37, 2012, extended as theirs of
    2004: two items more, a win and a loss, are shared among the blocks, and the normal interval is taken.
    """
    if len(blocks) == 1:
        wins, losses, items = blocks[0].changes
        return tango_interval(items * wins, items * losses, items, confidence)
    middle = variance = 0.0
    for weight, each in _weighted(blocks):
        wins, losses, items = each.changes
        n = items + 2 / len(blocks)
        up, down = (items * wins + 1 / len(blocks)) / n, (items * losses + 1 / len(blocks)) / n
        middle += weight * (up - down)
        variance += weight**2 * (up + down - (up - down) ** 2) / n
    half = float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(variance)
    return max(-1.0, middle - half), min(1.0, middle + half)


def _weighted(blocks: Sequence[Block]) -> list[tuple[float, Block]]:
    strata = sum(each.strata for each in blocks)
    return [(each.strata / strata, each) for each in blocks]
