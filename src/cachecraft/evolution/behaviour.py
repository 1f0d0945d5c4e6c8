"""How a policy behaves, in three numbers, and the fixed grid of 27 cells that sorts policies by them.

Diversity is kept by what a policy does, not by how it is written. The bin edges never move, so that a candidate's cell
depends on nothing but itself, and a resumed run has the grid that it had.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from cachecraft.errors import RunError

COSTS = ("O(T)", "O(wT)", "O(T^2)")
# Chosen on the built-in policies: a random choice keeps places of mean 0.5, and heads agree on as much as they keep.
RECENCY_EDGES = (0.45, 0.52)
AGREEMENT_EDGES = (0.3, 0.5)
CELLS = (len(RECENCY_EDGES) + 1) * (len(AGREEMENT_EDGES) + 1) * len(COSTS)


@dataclass(frozen=True)
class Behaviour:
    """What a policy does on the fixed probe.

    Attributes:
        recency: Mean place of the kept entries in the text, 0 for the first entry and 1 for the last.
        agreement: Share of one kv head's kept entries that another head keeps too; 1 where there is one head.
        cost: How its time grows with the context, one of `COSTS`.
    """

    recency: float
    agreement: float
    cost: str

    def __post_init__(self) -> None:
        """Refuse what has no cell.

        Raises:
            RunError: A share outside [0, 1] or an unknown cost class.
        """
        for name, value in (("recency", self.recency), ("agreement", self.agreement)):
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise RunError(f"A behaviour cannot have the {name} {value}; it is a share from 0 to 1.")
        if self.cost not in COSTS:
            raise RunError(f"A behaviour cannot have the cost class {self.cost!r}; it is one of {', '.join(COSTS)}.")

    @property
    def cell(self) -> int:
        """Place in the grid, from 0 to `CELLS` - 1."""
        recency = bisect_right(RECENCY_EDGES, self.recency)
        agreement = bisect_right(AGREEMENT_EDGES, self.agreement)
        return (recency * (len(AGREEMENT_EDGES) + 1) + agreement) * len(COSTS) + COSTS.index(self.cost)

    @property
    def label(self) -> str:
        """The cell in words, for displays."""
        recency = ("early", "even", "late")[bisect_right(RECENCY_EDGES, self.recency)]
        heads = ("own", "mixed", "alike")[bisect_right(AGREEMENT_EDGES, self.agreement)]
        return f"{recency}, heads {heads}, {self.cost}"


def observe(masks: Iterable[Sequence[Tensor]], cost: str) -> Behaviour:
    """Measure a behaviour.

    Args:
        masks: For each probe and budget the kept entries, a (G, T) bool tensor for each layer, none of them empty.
        cost: The policy's cost class.
    """
    recency: list[float] = []
    agreement: list[float] = []
    for layers in masks:
        for mask in layers:
            kept = mask.double()
            heads, tokens = kept.shape
            places = kept.new_tensor(range(tokens)) / max(1, tokens - 1)
            recency.append(float((kept @ places).sum() / kept.sum()))
            counts = kept.sum(dim=-1)
            fewer = counts[:, None].minimum(counts)
            shares = (kept @ kept.T) / fewer
            others = heads * (heads - 1)
            agreement.append(float((shares.sum() - shares.diagonal().sum()) / others) if others else 1.0)
    if not recency:
        raise RunError("A behaviour needs at least one probe; none was given.")
    return Behaviour(min(1.0, sum(recency) / len(recency)), min(1.0, sum(agreement) / len(agreement)), cost)
