"""Runs a search of budgets on recorded items: measures what EvolKV proposes, each vector once, and resumes exactly.

Every value comes from the run's record, where it is put item by item for a whole generation; a search that was
interrupted is led through the same values again and so continues as it would have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cachecraft.budgets.constants import with_factors
from cachecraft.budgets.evolkv import EvolKV, Vector
from cachecraft.budgets.items import Calibration, scaled
from cachecraft.budgets.record import FitnessRecord, vector_key
from cachecraft.errors import PolicyError
from cachecraft.policy.allocation import Allocation
from cachecraft.policy.contract import Policy


@dataclass(frozen=True)
class SearchProgress:
    """Told after each item, each generation and each line of the table.

    Attributes:
        group, groups: The group that is searched, from 0, and how many there are.
        iteration, iterations: Generations of the group done, and asked for.
        measured: Vectors measured so far, those of earlier commands included.
        best: The best vector's mean budget; as `fitness` and `uniform` None before the first generation is measured.
        fitness: Its fitness, from 0 to 1.
        uniform: That of the uniform division, where the search began.
        seconds: Since this command began to search.
        item, items: Items that the present generation was measured on, and how many there are; 0 between generations.
        what: The line of the table that is measured, once the search is over.
    """

    group: int
    groups: int
    iteration: int
    iterations: int
    measured: int
    best: float | None
    fitness: float | None
    uniform: float | None
    seconds: float
    item: int = 0
    items: int = 0
    what: str = ""

    @property
    def share(self) -> float:
        """How much of the search is done, from 0 to 1."""
        return min(1.0, (self.group + self.iteration / self.iterations) / self.groups)


@dataclass(frozen=True)
class Scorer:
    """The policy under search, its constants that are searched along, and the shape of its budgets.

    Attributes:
        policy: The policy.
        names: Names of the constants; none for budgets alone.
        layers, heads: L and G.
    """

    policy: Policy
    names: tuple[str, ...]
    layers: int
    heads: int

    def at(self, vector: Vector) -> Policy:
        """The policy with a vector's constants."""
        return with_factors(self.policy, self.names, vector.factors) if self.names else self.policy


def run_search(
    search: EvolKV,
    scorer: Scorer,
    calibration: Calibration,
    record: FitnessRecord,
    *,
    iterations: int,
    progress: Callable[[SearchProgress], None] = lambda _: None,
) -> None:
    """Search until every group is done.

    Args:
        search: The search, at its beginning or anywhere later.
        scorer: What chooses among the entries.
        calibration: The search split's items.
        record: What was measured before, and where the rest is put.
        iterations: Generations of a group, for the progress.
        progress: Called after each generation, and after each item that one is measured on.

    Raises:
        RunError: The model gives numbers that are not finite, or the record cannot be written.
        InvariantError: The policy broke the contract.
    """
    began = time.perf_counter()
    first: Vector | None = None

    def tell(item: int = 0) -> None:
        best = search.best
        progress(
            SearchProgress(
                group=search.group,
                groups=len(search.groups),
                iteration=search.iteration,
                iterations=iterations,
                measured=len(search.known),
                best=None if best is None else best.mean,
                fitness=None if best is None else search.known[best],
                uniform=None if first is None else search.known.get(first),
                seconds=time.perf_counter() - began,
                item=item,
                items=len(calibration.items) if item else 0,
            )
        )

    while not search.done:
        fresh = search.ask()
        first = first or fresh[0]
        search.tell(_fitness(search.target, fresh, scorer, calibration, record, tell))
        tell()


def _fitness(
    target: int,
    vectors: Sequence[Vector],
    scorer: Scorer,
    calibration: Calibration,
    record: FitnessRecord,
    tell: Callable[[int], None],
) -> dict[Vector, float]:
    """The mean fitness of vectors over all items; what the record lacks is measured, an item's vectors in one batch.

    `tell` is called with the number of items done after each that was measured.
    """
    keys = {vector: vector_key(vector) for vector in vectors}
    policies = {vector: scorer.at(vector) for vector in vectors}
    values: dict[Vector, list[float]] = {vector: [] for vector in vectors}
    for number, each in enumerate(calibration.items):
        missing = [vector for vector in vectors if record.get(keys[vector], each.item.id) is None]
        if missing:
            shape = (target, each.keep, len(each.context), scorer.layers, scorer.heads)
            counts = [scaled(vector.budgets, *shape) for vector in missing]
            found = _measured(
                calibration, number, missing, [(policies[v], own) for v, own in zip(missing, counts, strict=True)]
            )
            record.add(each.item.id, {keys[vector]: value for vector, value in zip(missing, found, strict=True)})
            tell(number + 1)
        for vector in vectors:
            value = record.get(keys[vector], each.item.id)
            assert value is not None
            values[vector].append(value)
    return {vector: math.fsum(own) / len(own) for vector, own in values.items()}


def _measured(
    calibration: Calibration, number: int, vectors: Sequence[Vector], candidates: Sequence[tuple[Policy, Tensor]]
) -> list[float]:
    """Fitness of vectors on an item; one whose constants the policy refuses has none, and the search goes on."""
    try:
        return calibration.by_counts(number, candidates)
    except PolicyError:
        if len(candidates) > 1:
            pairs = zip(vectors, candidates, strict=True)
            return [value for own, pair in pairs for value in _measured(calibration, number, [own], [pair])]
        if not any(vectors[0].factors):
            raise
        return [0.0]


def table(
    rows: Mapping[str, Sequence[Policy]],
    calibration: Calibration,
    record: FitnessRecord,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Mean fitness of divisions over a split's items.

    Args:
        rows: For each name the policies, with their allocations, whose mean is the row's value.
        calibration: The items.
        record: As for `run_search`.
        progress: Told what is being measured.
    """
    policies = {policy.id: policy for own in rows.values() for policy in own}
    values: dict[str, list[float]] = {policy: [] for policy in policies}
    for number, each in enumerate(calibration.items):
        progress(f"{each.item.task} {each.item.split} {number + 1}/{len(calibration.items)}")
        missing = [key for key in policies if record.get(key, each.item.id) is None]
        if missing:
            found = dict(zip(missing, calibration.by_policy(number, [policies[key] for key in missing]), strict=True))
            values_of = {key: value for key, (value, _) in found.items()}
            record.add(each.item.id, values_of, {key: note for key, (_, note) in found.items()})
        for key, own in values.items():
            value = record.get(key, each.item.id)
            assert value is not None
            own.append(value)
    means = {key: math.fsum(own) / len(own) for key, own in values.items()}
    return {name: math.fsum(means[policy.id] for policy in own) / len(own) for name, own in rows.items()}


def explicit(vector: Sequence[float], layers: int, *, adaptive_heads: bool = False) -> Allocation:
    """Budgets of a vector, by layer and then kv head, as an allocation."""
    heads = len(vector) // layers
    shares = tuple(tuple(vector[place : place + heads]) for place in range(0, len(vector), heads))
    return Allocation("explicit", shares, adaptive_heads=adaptive_heads)
