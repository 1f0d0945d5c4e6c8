"""What a discovery is asked for, and what its run.yaml records of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cachecraft.errors import BudgetError, CacheCraftError
from cachecraft.evaluation.cells import Budget
from cachecraft.evolution.interface import Interface


@dataclass(frozen=True)
class SearchBudget:
    """When a search ends: after so many candidates or so much time, seeds included, or so many dollars for replies."""

    candidates: int | None = None
    seconds: float | None = None
    money: float | None = None

    def __post_init__(self) -> None:
        """Refuse a budget of nothing, and of both kinds.

        Raises:
            BudgetError: None or several are given, or one is not above 0.
        """
        given = [value for value in (self.candidates, self.seconds, self.money) if value is not None]
        if len(given) != 1 or not 0 < given[0] < math.inf:
            raise BudgetError(f"A search budget of {self.label or 'nothing'} means nothing; give 600 or 30m, say.")

    @property
    def label(self) -> str:
        """As `parse_budget` reads it."""
        parts = [str(self.candidates)] if self.candidates is not None else []
        parts += [f"{self.seconds:g}s"] if self.seconds is not None else []
        return " ".join(parts + ([f"${self.money:g}"] if self.money is not None else []))


def parse_budget(text: str) -> SearchBudget:
    """A search budget from ``"600"`` (candidates), ``"90s"``, ``"30m"``, ``"2h"`` or ``"$5"``.

    Raises:
        BudgetError: It is none of these.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        if text.startswith("$"):
            return SearchBudget(money=float(text[1:]))
        if text[-1:] in units:
            return SearchBudget(seconds=float(text[:-1]) * units[text[-1]])
        return SearchBudget(candidates=int(text))
    except ValueError:
        raise BudgetError(
            f"--budget {text!r} is no number of candidates, time such as 30m or money such as $5."
        ) from None


@dataclass(frozen=True)
class DiscoverySettings:
    """What to search for and on what.

    Attributes:
        tasks: Names of tasks; those on which policies cannot be told apart are left out.
        ratios: Shares to evict that fitness is the mean over.
        length: Tokens of an item, the generated ones included.
        seed: Base seed of items, proposals and everything else by chance.
        quick: Items of each task that every candidate is measured on.
        items: Items of each task that promising candidates are measured on, the quick ones included.
        batch: Candidates proposed at a time; what is proposed depends on closed batches only.
        again: Elites scored again on fresh items in each batch.
        most: Items of each task beyond which a candidate is known well enough.
        validation: Items of each task that decide which tasks are eligible.
        level: What candidates may edit, one of the interface's levels.
        features: Features that candidates may read; None for all.
        islands: Populations that breed apart.
        seconds: Time that a candidate may take for its choices on all items of a stage.
        start: Names and sources of the programs to begin with, instead of the built-in policies and single signals.
        without: Built-in policies not to begin with, such as one that an earlier search found.
    """

    tasks: tuple[str, ...]
    ratios: tuple[float, ...] = (0.75, 0.88)
    length: int = 1024
    seed: int = 0
    quick: int = 1
    items: int = 3
    batch: int = 8
    again: int = 2
    most: int = 24
    validation: int = 3
    level: str = "scorer+selector"
    features: tuple[str, ...] | None = None
    islands: int = 1
    seconds: float = 20.0
    start: tuple[tuple[str, str], ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be searched with.

        Raises:
            CacheCraftError: A number below 1, ratios outside (0, 1), or no task.
        """
        for name in ("quick", "items", "batch", "most", "validation", "islands"):
            if getattr(self, name) < 1:
                raise CacheCraftError(f"A discovery with {name} {getattr(self, name)} means nothing; give at least 1.")
        if self.items < self.quick:
            raise CacheCraftError(f"{self.items} items per task are fewer than the {self.quick} quick ones; give more.")
        if not self.tasks:
            raise CacheCraftError("A discovery needs a task to measure on; name one with --tasks.")
        if not self.ratios or not all(0 < ratio < 1 for ratio in self.ratios):
            raise BudgetError(f"A discovery needs ratios above 0 and below 1, not {list(self.ratios)}.")
        if len(set(self.ratios)) < len(self.ratios):
            raise BudgetError(f"The ratios {list(self.ratios)} repeat themselves; give each once.")

    @property
    def interface(self) -> Interface:
        """What candidates may edit."""
        return Interface.from_dict(
            {"level": self.level, "features": None if self.features is None else list(self.features)}
        )

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The ratios as budgets."""
        return tuple(Budget(ratio=ratio) for ratio in self.ratios)

    def record(self) -> dict[str, Any]:
        """As written to run.yaml: plain types."""
        plain = asdict(self)
        return {
            "command": "discover",
            **{key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()},
            "start": [list(each) for each in self.start],
        }

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> DiscoverySettings:
        """The settings that a run.yaml tells of; the inverse of `record`.

        Raises:
            CacheCraftError: They are of no discovery, or mean nothing.
        """
        names = {each.name for each in fields(cls)}
        found: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
        }
        if record.get("command") != "discover" or not names <= set(found):
            raise CacheCraftError("The run is no discovery of this version; name the folder of one.")
        found["start"] = tuple((name, source) for name, source in found["start"])
        return cls(**{name: found[name] for name in names})
