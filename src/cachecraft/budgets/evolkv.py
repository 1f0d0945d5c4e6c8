"""EvolKV (arXiv 2509.08315): layers in groups, bottom-up, each group's budgets by a fresh CMA-ES.

The search proposes and is told; it evaluates nothing and stores nothing. Its proposals are a pure function of its
settings and of what it was told, so a search that is told the same values again goes the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cmaes import CMAwM

from cachecraft.budgets.settings import EvolKVSettings
from cachecraft.errors import BudgetError

FACTOR_LIMIT = 2.0  # of a constant's binary logarithm: from a quarter of its default to four times it


def cache_score(mean: float, target: float, discount: float) -> float:
    """How well a cache's size meets the target: falling above it, nearly level below it.

    Args:
        mean: k̄, entries per kv head.
        target: c.
        discount: γ.
    """
    if mean > target:
        return max(0.0, 1 - (mean - target) / target)
    return 1 - discount * (1 - mean / target)


def objective(fitness: float, mean: float, target: float, settings: EvolKVSettings) -> float:
    """What is maximised: fitness * (1 + λ * `cache_score`).

    Raises:
        BudgetError: The fitness is not from 0 to 1: below 0, a worse cache size would be rewarded.
    """
    if not (math.isfinite(fitness) and 0 <= fitness <= 1):
        raise BudgetError(f"A fitness of {fitness} cannot be searched with; it must be a number from 0 to 1.")
    return fitness * (1 + settings.weight * cache_score(mean, target, settings.discount))


@dataclass(frozen=True)
class Vector:
    """One candidate.

    Attributes:
        budgets: Entries per kv head of each layer, or of each layer and then kv head.
        factors: Binary logarithms of what each constant of the scorer is multiplied with.
    """

    budgets: tuple[int, ...]
    factors: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Mean of the budgets."""
        return sum(self.budgets) / len(self.budgets)


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        layers: Compressed layers.
        heads: Budgets of each layer: 1, or a kv head's each.
        most: The most entries of a budget: with more, no item's layer could keep more.
        factors: Constants of the scorer that are searched along.
    """

    layers: int
    heads: int
    most: int
    factors: int = 0


class EvolKV:
    """The search: `ask` for vectors to measure, `tell` their fitness, until it is `done`.

    Attributes:
        target: c, entries per kv head.
        best: The best vector so far, by objective; None before the first `tell`.
        best_value: Its objective.
        group, iteration: Where the search stands.
    """

    def __init__(self, space: Space, target: int, settings: EvolKVSettings) -> None:
        """Begin with the uniform division.

        Raises:
            BudgetError: The target leaves nothing to search.
        """
        if target >= space.most:
            raise BudgetError(
                f"A target of {target} entries leaves nothing to evict in any context; give a smaller target or longer "
                "items."
            )
        if target < settings.minimum:
            raise BudgetError(f"A target of {target} entries lies below the least budget of {settings.minimum}.")
        self.target, self._space, self._settings = target, space, settings
        self.groups = _groups(space, settings.group_size)
        self.best: Vector | None = None
        self.best_value = -math.inf
        self.group = self.iteration = 0
        self._known: dict[Vector, float] = {}
        self._optimiser: CMAwM | None = None
        start = Vector((target,) * (space.layers * space.heads), (0.0,) * space.factors)
        self._population: list[tuple[Vector, np.ndarray | None]] = [(start, None)]

    @property
    def done(self) -> bool:
        """Whether every group has been searched."""
        return self.group >= len(self.groups)

    @property
    def most(self) -> int:
        """The most entries of a budget."""
        return self._space.most

    @property
    def known(self) -> Mapping[Vector, float]:
        """Fitness of every vector told."""
        return self._known

    def ask(self) -> list[Vector]:
        """Vectors of this generation that were not told yet, each once; there may be none."""
        return [vector for vector in dict.fromkeys(v for v, _ in self._population) if vector not in self._known]

    def tell(self, fitness: Mapping[Vector, float]) -> None:
        """Take in the fitness of what was asked for, and go on to the next generation.

        Raises:
            BudgetError: A value is not from 0 to 1, or one is missing.
        """
        if missing := [vector for vector in self.ask() if vector not in fitness]:
            raise BudgetError(f"{len(missing)} of the vectors asked for were not told; tell all of a generation.")
        values = {vector: self._value(vector, value) for vector, value in fitness.items()}
        self._known.update(fitness)
        told = []
        for vector, raw in self._population:
            value = values[vector] if vector in values else self._value(vector, self._known[vector])
            if self.best is None or value > self.best_value:
                self.best, self.best_value = vector, value
            if raw is not None:
                told.append((raw, -value))
        if self._optimiser is not None:
            self._optimiser.tell(told)
            self.iteration += 1
        self._next()

    def _value(self, vector: Vector, fitness: float) -> float:
        mean = vector.mean
        if self._settings.mean == "group" and not self.done:
            own = [vector.budgets[place] for place in self.groups[self.group]]
            mean = sum(own) / len(own)
        return objective(fitness, mean, self.target, self._settings)

    def _next(self) -> None:
        """The next generation, of the next group where this one has had its iterations."""
        optimiser = self._optimiser
        if optimiser is not None and (self.iteration >= self._settings.iterations or optimiser.should_stop()):
            self.group, self.iteration, optimiser = self.group + 1, 0, None
            if self.done:
                self._population, self._optimiser = [], None
                return
            if self._settings.mean == "group" and self.best is not None:
                # Sizes are counted over another group now, so what the best is worth has to be counted anew.
                self.best_value = self._value(self.best, self._known[self.best])
        self._optimiser = optimiser or self._fresh()
        size = self._optimiser.population_size
        self._population = [self._drawn(*self._optimiser.ask()) for _ in range(size)]

    def _fresh(self) -> CMAwM:
        """A new optimiser around the best of this group's budgets, in units of the target."""
        assert self.best is not None
        own, settings, unit = self.groups[self.group], self._settings, 1 / self.target
        mean = [self.best.budgets[place] * unit for place in own] + list(self.best.factors)
        low, high = settings.minimum * unit, self._space.most * unit
        size = 4 + math.floor(3 * math.log(len(mean))) if settings.population is None else settings.population
        bounds = [[low, high]] * len(own) + [[-FACTOR_LIMIT, FACTOR_LIMIT]] * self._space.factors
        return CMAwM(
            mean=np.array(mean),
            sigma=settings.sigma,
            bounds=np.array(bounds),
            steps=np.array([unit] * len(own) + [0.0] * self._space.factors),
            population_size=size,
            seed=(settings.seed * 7919 + self.group) % (1 << 31),
        )

    def _drawn(self, encoded: np.ndarray, raw: np.ndarray) -> tuple[Vector, np.ndarray]:
        """The best vector with this group's part replaced."""
        assert self.best is not None
        own = self.groups[self.group]
        budgets = list(self.best.budgets)
        for place, share in zip(own, encoded, strict=False):
            budgets[place] = min(max(round(float(share) * self.target), self._settings.minimum), self._space.most)
        return Vector(tuple(budgets), tuple(float(each) for each in encoded[len(own) :])), raw


def _groups(space: Space, size: int) -> list[range]:
    """Places of each group's budgets, the first layers first.

    Raises:
        BudgetError: There is one budget in all, which the target leaves no choice.
    """
    step, count = size * space.heads, space.layers * space.heads
    if count < 2:
        raise BudgetError("This model compresses one layer only, so there are no budgets of layers to search.")
    return [range(first, min(first + step, count)) for first in range(0, count, step)]
