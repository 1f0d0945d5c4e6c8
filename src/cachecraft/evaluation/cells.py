"""The cells of a grid: which policies and reference lines, at which budgets; and the name of everything measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cachecraft.errors import BudgetError, CacheCraftError
from cachecraft.policy.budgets_file import FILE_NAME
from cachecraft.policy.contract import Policy, load_policy
from cachecraft.policy.decide import keep_count

EVALUATOR_VERSION = 2  # part of every result's id: raise it when the same settings would give another number

Regime = Literal["agnostic", "aware"]
Scoring = Literal["answer", "likelihood", "fidelity"]
REGIMES: tuple[Regime, ...] = ("agnostic", "aware")
SCORINGS: tuple[Scoring, ...] = ("answer", "likelihood", "fidelity")
REFERENCES = ("full", "hindsight", "random")
RANDOM_DRAWS = 3


@dataclass(frozen=True, order=True)
class Budget:
    """How much of the cache stays: a ratio evicted, or a number of entries kept per kv head."""

    ratio: float | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            BudgetError: Both or neither given, a ratio outside [0, 1), or fewer than one entry.
        """
        if (self.ratio is None) == (self.keep is None):
            raise BudgetError("A budget is either a ratio or a number of entries to keep; give one of the two.")
        keep_count(1, ratio=self.ratio, keep=self.keep)

    def entries(self, tokens: int) -> int:
        """Entries kept per kv head of a context of `tokens`."""
        return keep_count(tokens, ratio=self.ratio, keep=self.keep)

    @property
    def label(self) -> str:
        """As shown in tables: ``0.75`` or ``keep 128``."""
        return f"{self.ratio:g}" if self.ratio is not None else f"keep {self.keep}"

    @property
    def exact(self) -> str:
        """As results are known by: every digit of the ratio, so that no two ratios share a result."""
        return repr(self.ratio).removesuffix(".0") if self.ratio is not None else f"keep {self.keep}"


FULL = Budget(ratio=0.0)


@dataclass(frozen=True)
class Cell:
    """One thing to measure on every sample.

    Attributes:
        label: The name it has in tables; the draws of the random line share theirs.
        budget: What stays of the cache.
        policy: The policy, or None for the reference lines full and hindsight.
        reference: Whether it is a reference line.
    """

    label: str
    budget: Budget
    policy: Policy | None
    reference: bool

    @property
    def fingerprint(self) -> str:
        """What of the cell can change a result: program, parameters and budget, not its label."""
        return f"{self.policy.id if self.policy else self.label} {self.budget.exact}"


def make_cells(
    policies: Sequence[str],
    budgets: Sequence[Budget],
    *,
    references: Iterable[str] = REFERENCES,
    selector: str | None = None,
    allocations: Sequence[str] = (),
    run: bool = True,
) -> list[Cell]:
    """Cross policies with allocations and budgets and add the reference lines.

    Args:
        policies: Specifications as `load_policy` takes them.
        budgets: At least one.
        references: Which of `REFERENCES` to add.
        selector: A selector that replaces each policy's own, for example ``"chunks:20"``.
        allocations: Each replaces every policy's own division, as `load_policy` takes it; none leaves it.
        run: Run the policies' programs now; see `load_policy`.

    Raises:
        CacheCraftError: Two policies share a name but not a program, or nothing is to be measured.
    """
    loaded = [
        load_policy(spec, selector=selector, allocation=allocation, run=run)
        for spec in policies
        for allocation in allocations or (None,)
    ]
    names: dict[str, Policy] = {}
    for policy in loaded:
        first = names.setdefault(label := _label(policy), policy)
        if first.id != policy.id:
            files = [each.allocation.origin for each in (first, policy) if each.allocation is not None]
            where = f", with budgets from {files[0]} and {files[-1]}" if len(set(files)) == 2 and all(files) else ""
            what = "run folders" if where and files[0].endswith(FILE_NAME) else "files"
            raise CacheCraftError(f"Two different policies are called {label!r}{where}; rename one of the {what}.")
    wanted = set(references)
    cells = [Cell("full", FULL, None, True)] if "full" in wanted else []
    unique = list({policy.id: policy for policy in loaded}.values())
    cells += [Cell(_label(policy), budget, policy, False) for policy in unique for budget in budgets]
    if "hindsight" in wanted:
        cells += [Cell("hindsight", budget, None, True) for budget in budgets]
    if "random" in wanted:
        draws = [load_policy(f"random:draw={draw}") for draw in range(RANDOM_DRAWS)]
        cells += [Cell("random", budget, draw, True) for draw in draws for budget in budgets]
    if not cells:
        raise CacheCraftError("There is nothing to measure: name at least one policy or reference line.")
    return cells


def _label(policy: Policy) -> str:
    """The policy's name, and selector and allocation where they were given from outside: they make another row."""
    given = ", ".join(str(each) for each in (policy.selector, policy.allocation) if each is not None)
    return f"{policy.name} [{given}]" if given else policy.name


def result_id(**parts: Any) -> str:
    """Content hash, 32 hex digits, of everything that can change a result."""
    text = json.dumps({**parts, "evaluator": EVALUATOR_VERSION}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
