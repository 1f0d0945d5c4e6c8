"""Chooses among arms by how often each has brought an improvement: Thompson sampling with forgetting.

What worked early need not work late, so that every outcome fades as new ones are told.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

FORGET = 0.99  # what an outcome still counts after one more has been told


class Bandit:
    """Arms with their faded counts of improvements and of other outcomes."""

    def __init__(self, arms: Iterable[str]) -> None:
        """Begin with every arm unknown."""
        self._counts: dict[str, tuple[float, float]] = dict.fromkeys(arms, (0.0, 0.0))

    def choose(
        self, draw: random.Random, among: Sequence[str], costs: Mapping[str, float] = MappingProxyType({})
    ) -> str:
        """The arm whose sampled rate of improvement for its cost is highest; an unknown arm may well be it.

        Args:
            draw: Where chance comes from.
            among: Arms to choose from.
            costs: What a try of an arm costs, 1 for those that are not named.
        """
        rates = {}
        for arm in among:
            good, bad = self._counts.get(arm, (0.0, 0.0))
            rates[arm] = draw.betavariate(1 + good, 1 + bad) / costs.get(arm, 1.0)
        return max(among, key=lambda arm: rates[arm])

    def tell(self, arm: str, improved: bool) -> None:
        """Count an outcome; those of every arm fade."""
        faded = {each: (good * FORGET, bad * FORGET) for each, (good, bad) in self._counts.items()}
        good, bad = faded.get(arm, (0.0, 0.0))
        faded[arm] = (good + 1, bad) if improved else (good, bad + 1)
        self._counts = faded

    def rates(self) -> dict[str, float]:
        """Expected rate of improvement by arm."""
        return {arm: (1 + good) / (2 + good + bad) for arm, (good, bad) in self._counts.items()}
