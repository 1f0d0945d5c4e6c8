"""What a candidate's scores add up to, whether fresh items bear it out, and whether one stage predicts another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from cachecraft.evaluation.forced import Likelihood
from cachecraft.evolution.arena import ArenaItem
from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Fitness

KNOWN = 12  # candidates that must have been through both stages before a correlation counts
PREDICTS = 0.3  # least rank correlation with the next stage for a stage to stop anybody
SUSPECT = 4.0  # standard errors by which fresh items may be worse than those before


@dataclass(frozen=True)
class Measured:
    """What one candidate scored on one item at one ratio.

    Attributes:
        model, item, ratio: On what; ratio is an index.
        recovered: Its recovered share, corrected for the item's difficulty.
        found: Its likelihood.
    """

    model: str
    item: ArenaItem
    ratio: int
    recovered: float
    found: Likelihood


def fitness_of(measured: Sequence[Measured]) -> Fitness:
    """Over items: each item's mean over ratios; blocks hold every task and model alike, so none weighs more."""
    groups: dict[tuple[str, str], list[float]] = {}
    for each in measured:
        groups.setdefault((each.model, each.item.name), []).append(each.recovered)
    means = [math.fsum(values) / len(values) for values in groups.values()]
    mean = math.fsum(means) / len(means)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in means) / max(1, len(means) - 1))
    return Fitness(mean, len(means), spread)


def much_worse(before: Fitness, fresh: Fitness) -> bool:
    """Whether fresh items are worse than chance explains, as with a program that knows its items by heart."""
    spread = max(before.spread, fresh.spread)
    error = spread * math.sqrt(1 / before.items + 1 / fresh.items)
    return before.mean - fresh.mean > max(SUSPECT * error, 0.2)


def correlation(population: Population, earlier: str, later: str) -> float | None:
    """Spearman's rank correlation between two stages' scores over all candidates that have both.

    Args:
        population: The run's.
        earlier: A stage: ``"error"`` (the attention output's, negated), ``"quick"``, ``"full"``.
        later: Another.

    Returns:
        From -1 to 1, or None where fewer than `KNOWN` candidates have both or all are equal.
    """
    sign = {"error": -1.0}
    pairs = [
        [sign.get(stage, 1.0) * means[stage] for stage in (earlier, later)]
        for means in population.stage_means().values()
        if earlier in means and later in means
    ]
    if len(pairs) < KNOWN:
        return None
    found = float(stats.spearmanr(pairs).statistic)
    return found if math.isfinite(found) else None


def predicts(population: Population) -> bool:
    """Whether the quick stage is known to predict the full one, so that it may stop anybody."""
    known = correlation(population, "quick", "full")
    return known is not None and known >= PREDICTS
