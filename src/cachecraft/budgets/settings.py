"""What a search of budgets is asked for: EvolKV's constants, every one a setting. Nothing is computed here."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cachecraft.errors import BudgetError
from cachecraft.evaluation.cells import REGIMES, Budget, Regime

Granularity = Literal["layer", "head"]
Fitness = Literal["likelihood", "answer"]
FITNESSES: tuple[Fitness, ...] = ("likelihood", "answer")
MEANS = ("all", "group")
HEADS = ("alike", "adaptive")
GRANULARITIES: tuple[Granularity, ...] = ("layer", "head")


@dataclass(frozen=True)
class EvolKVSettings:
    """The constants of EvolKV (arXiv 2509.08315); defaults are the paper's where it has one.

    Attributes:
        group_size: Layers that are searched together.
        iterations: Generations of each group (ours: the paper does not say).
        population: Candidates of a generation; None for 4 + floor(3 ln n) of a group with n numbers.
        sigma: First step of the search in units of the target (ours).
        weight: λ, how much the cache's size counts.
        discount: γ, how little a cache below the target gains.
        mean: Whether the size that counts is the mean over ``all`` layers or over the ``group`` that is searched.
        minimum: Least entries of a kv head.
        granularity: Whether each ``layer`` or each kv ``head`` has a budget of its own.
        heads: Whether the heads of a layer keep ``alike``, or share its budget by score, ``adaptive``.
        with_params: Search the constants of the scorer along with the budgets.
        seed: Everything by chance derives from it.
    """

    group_size: int = 8
    iterations: int = 10
    population: int | None = None
    sigma: float = 0.3
    weight: float = 0.3
    discount: float = 0.2
    mean: str = "all"
    minimum: int = 1
    granularity: Granularity = "layer"
    heads: str = "alike"
    with_params: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            BudgetError: A number out of its range, or an unknown word.
        """
        for name, value, least in (
            ("A group", self.group_size, 1),
            ("A number of iterations", self.iterations, 1),
            # With fewer, CMA-ES learns nothing of the spread.
            ("A population", 4 if self.population is None else self.population, 4),
            ("A least budget", self.minimum, 1),
        ):
            if value < least:
                raise BudgetError(f"{name} of {value} cannot be searched with; give at least {least}.")
        for name, number in (("λ", self.weight), ("γ", self.discount), ("σ", self.sigma)):
            if not math.isfinite(number) or number < 0 or (name == "σ" and number == 0):
                raise BudgetError(f"{name} is {number}; give a finite number {'above 0' if name == 'σ' else 'from 0'}.")
        if 1 + self.weight * (1 - self.discount) < 0:
            raise BudgetError(
                f"With λ {self.weight:g} and γ {self.discount:g} a small cache is worth less than nothing, which "
                f"turns the search around; give a γ of at most {1 + 1 / self.weight:g}."
            )
        for kind, word, known in (
            ("mean", self.mean, MEANS),
            ("granularity", self.granularity, GRANULARITIES),
            ("division of heads", self.heads, HEADS),
        ):
            if word not in known:
                raise BudgetError(f"There is no {kind} {word!r}; choose {' or '.join(known)}.")
        if self.heads == "adaptive" and self.granularity == "head":
            raise BudgetError("Heads either have budgets of their own or share by score; choose one of the two.")

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class SearchTask:
    """What budgets are measured on.

    Attributes:
        budget: The target: entries per kv head, or a share to evict.
        length: Tokens of an item, the generated ones included.
        samples: Items of each task, of the search split.
        held_out: Items of each task, of the validation split, for the table; 0 for none.
        regime: ``agnostic`` compresses the context, ``aware`` context and question.
        fitness: ``likelihood`` is exp of the mean log-probability of the reference answer's tokens, ``answer`` the
            task's own score of the generated answer; both from 0 to 1.
        seed: Base seed of the items.
        skip_long: Leave out benchmark items longer than the length, instead of cutting or refusing them.
    """

    budget: Budget
    length: int = 1024
    samples: int = 3
    held_out: int = 3
    regime: Regime = "agnostic"
    fitness: Fitness = "likelihood"
    seed: int = 0
    skip_long: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be measured; BudgetError."""
        if self.samples < 1:
            raise BudgetError(f"{self.samples} samples of a task cannot be searched on; ask for at least 1.")
        if self.held_out < 0:
            raise BudgetError(f"{self.held_out} held-out items mean nothing; ask for 0 or more.")
        for kind, word, known in (("regime", self.regime, REGIMES), ("fitness", self.fitness, FITNESSES)):
            if word not in known:
                raise BudgetError(f"There is no {kind} {word!r}; choose {' or '.join(known)}.")
