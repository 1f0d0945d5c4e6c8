"""What every cell of a grid keeps of one trace: each policy decides on each layer once, at all its budgets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachecraft.errors import BudgetError, PolicyError
from cachecraft.evaluation.apart import Apart
from cachecraft.evaluation.cells import Cell
from cachecraft.evaluation.hindsight import hindsight_orders
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import Trace, layer_features
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import Decision
from cachecraft.policy.division import Divider
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.selectors import keep_first
from cachecraft.policy.sequence import decide_allocated
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True, eq=False)
class Subject:
    """The model under measurement.

    Attributes:
        structure: Its structure, which holds the model itself.
        tokenizer: Its tokenizer.
        name, revision, dtype: What results are filed under.
    """

    structure: ModelStructure
    tokenizer: Any
    name: str
    revision: str
    dtype: str


class Selections:
    """What every cell keeps of one trace: masks by layer, or the sentence that says why there are none.

    Attributes:
        tokens: Entries of the context.
        bytes_full: Bytes of the whole cache, sliding windows included.
        rejected: By cell, why it has no masks.
        notes: By cell, what of its allocation had to give way.
    """

    def __init__(
        self,
        subject: Subject,
        trace: Trace,
        cells: Sequence[Cell],
        clock: Stopwatch,
        apart: Apart | None = None,
    ) -> None:
        """Let each policy decide on each layer, all its budgets at once; foreign ones in `apart` where it is given."""
        self._structure = subject.structure
        self.tokens, self.bytes_full, self._entry_bytes = trace.tokens, trace.full_bytes, trace.bytes_per_entry
        everything = trace.everything()  # which is what stays of layers that are not compressed
        self._masks: dict[int, list[Tensor]] = {id(cell): list(everything) for cell in cells}
        self._forced: dict[int, bool] = {id(cell): cell.label != "full" for cell in cells}
        self.rejected: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        groups = _by_policy(cells)
        if not groups:
            return
        foreign = [group for group in groups if apart is not None and group[0].foreign]
        groups = [group for group in groups if group not in foreign]
        with clock.phase("features"):
            if apart is not None and foreign:
                self._decide_apart(subject, trace, foreign, apart)
            self._decide(subject, trace, [group for group in groups if not group[0].waits])
            self._allocate(subject, trace, [group for group in groups if group[0].waits])

    def _uniform(self, cell: Cell, heads: int) -> Tensor:
        return torch.full((heads,), cell.budget.entries(self.tokens), dtype=torch.int64)

    def _decide(self, subject: Subject, trace: Trace, groups: Sequence[tuple[Policy, list[Cell]]]) -> None:
        """Policies that decide layer by layer: one pass over the layers."""
        if not groups:
            return
        layers = len(subject.structure.compressed)
        dividers = [
            Divider(policy, layers, [cell.budget.entries(self.tokens) for cell in members])
            for policy, members in groups
        ]
        for place, features in enumerate(layer_features(subject.structure, subject.tokenizer, trace)):
            for divider, (_, members) in zip(dividers, groups, strict=True):
                if id(members[0]) in self.rejected:
                    continue
                try:
                    decided = divider.decide(place, features)
                except (PolicyError, BudgetError) as error:
                    self.rejected |= {id(cell): str(error) for cell in members}
                    continue
                self._take(features.layer, members, decided)

    def _allocate(self, subject: Subject, trace: Trace, groups: Sequence[tuple[Policy, list[Cell]]]) -> None:
        """Policies that divide the budget by the scores of all layers."""

        def layers() -> Iterator[LayerFeatures]:
            return layer_features(subject.structure, subject.tokenizer, trace)

        for policy, members in groups:
            for cell in members:
                try:
                    decided = decide_allocated(policy, layers, cell.budget.entries(self.tokens))
                except PolicyError as error:
                    self.rejected[id(cell)] = str(error)
                    continue
                for layer, decision in decided.items():
                    self._take(layer, [cell], [decision])

    def _decide_apart(
        self, subject: Subject, trace: Trace, groups: Sequence[tuple[Policy, list[Cell]]], apart: Apart
    ) -> None:
        """Policies that run in the sandbox, which checks the budgets; what is protected is checked there as well."""
        wanted = [(policy, tuple(cell.budget.entries(self.tokens) for cell in members)) for policy, members in groups]
        layers = layer_features(subject.structure, subject.tokenizer, trace)
        for (_, members), choice in zip(groups, apart.choose(layers, wanted), strict=True):
            for number, cell in enumerate(members):
                if isinstance(choice, str):
                    self.rejected[id(cell)] = choice
                    continue
                for layer, mask in zip(subject.structure.compressed, choice.masks(number), strict=True):
                    decision = Decision(mask, choice.forced[number], choice.read_keep, choice.notes[number])
                    self._take(layer, [cell], [decision])

    def _take(self, layer: int, members: Sequence[Cell], decided: Sequence[Decision]) -> None:
        for cell, decision in zip(members, decided, strict=True):
            self._masks[id(cell)][layer] = decision.mask.cpu()  # where all selections are, the model's device or not
            self._forced[id(cell)] &= decision.forced
            if decision.note:
                self.notes[id(cell)] = decision.note

    def add_hindsight(self, trace: Trace, cells: Sequence[Cell], queries: Sequence[Tensor]) -> None:
        """Fill in the hindsight cells from the question's and answer's queries, (H, N, D) for each layer."""
        orders = hindsight_orders(self._structure, trace, queries)
        for cell in cells:
            if cell.label == "hindsight":
                keep = self._uniform(cell, self._structure.kv_heads)
                for layer, order in orders.items():
                    self._masks[id(cell)][layer] = keep_first(order, keep).cpu()
                self._forced[id(cell)] = False

    def of(self, cell: Cell) -> list[Tensor] | None:
        """The masks of a cell, or None when its policy was rejected."""
        return None if id(cell) in self.rejected else self._masks[id(cell)]

    def masks(self, cell: Cell) -> list[Tensor]:
        """The masks of a cell whose policy was not rejected: (G, T) bool for each layer."""
        return self._masks[id(cell)]

    def forced(self, cell: Cell) -> bool:
        """Whether protection left nothing to the scorer, in every layer and head."""
        return self._forced[id(cell)]

    def bytes_kept(self, cell: Cell) -> int:
        """Bytes of keys and values that the cell keeps, sliding windows included."""
        kept = sum(int(mask.sum()) for mask in self._masks[id(cell)])
        return kept * self._entry_bytes // (self._structure.layers * self._structure.kv_heads)


def _by_policy(cells: Iterable[Cell]) -> list[tuple[Policy, list[Cell]]]:
    groups: dict[str, tuple[Policy, list[Cell]]] = {}
    for cell in cells:
        if cell.policy is not None:
            groups.setdefault(cell.policy.id, (cell.policy, []))[1].append(cell)
    return list(groups.values())
