"""What one sequence keeps of each layer of its dense prefill, decided as soon as the layer is done.

A compressed context reads one text through it, a compressed `generate` one for each row of its batch. It runs no model
and stores nothing beyond what a policy that divides its budget over the layers has to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.errors import BudgetError, PolicyLoadError
from cachecraft.policy.contract import Policy, load_policy
from cachecraft.policy.decide import Decision, Scored, keep_count, score, select
from cachecraft.policy.division import Divider, divided
from cachecraft.policy.features import LayerFeatures
from cachecraft.runtime.features import SequenceFeatures
from cachecraft.runtime.gather import kept_entries
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True)
class Budgeted:
    """A policy and how much it may keep, checked before anything is computed.

    Attributes:
        policy: The loaded policy.
        ratio: Share of the entries to evict, or None.
        keep: Entries to keep per kv head on average, or None.
    """

    policy: Policy
    ratio: float | None
    keep: int | None

    @classmethod
    def of(
        cls,
        policy: str | Policy,
        ratio: float | None,
        keep: int | None,
        selector: str | None,
        allocation: str | None = None,
    ) -> Budgeted:
        """Load the policy and refuse a budget that means nothing.

        Raises:
            BudgetError: Both or neither of ratio and keep are given, or the number means nothing, or a budgets file
                cannot be used.
            PolicyError: The policy cannot be loaded.
            UnknownNameError: There is no such policy, selector or allocation.
        """
        if ratio is None and keep is None:
            raise BudgetError(
                "Say how much to keep: ratio=0.5 evicts half of the entries, keep=512 keeps 512 per head."
            )
        keep_count(1, ratio, keep)
        loaded = not isinstance(policy, str)
        if isinstance(policy, str):
            policy = load_policy(policy, selector=selector, allocation=allocation)
        for what, given in (("selector", selector), ("allocation", allocation)):
            if given is not None and loaded:
                raise PolicyLoadError(
                    f"Policy {policy.name} is loaded already; give the {what} {given!r} to load_policy."
                )
        return cls(policy, ratio, keep)

    def require_model(self, structure: ModelStructure) -> None:
        """Refuse budgets that were made for another model; BudgetError."""
        if self.policy.allocation is not None:
            self.policy.allocation.require_model(len(structure.compressed), structure.kv_heads)

    def entries(self, tokens: int) -> int:
        """Entries to keep per kv head of `tokens`."""
        return keep_count(tokens, self.ratio, self.keep)


@dataclass(frozen=True, eq=False)
class Kept:
    """What one sequence keeps of a layer.

    Attributes:
        keys: (S, D) of all kv heads one after another, each in text order.
        values: (S, D) likewise.
        counts: (G,) int64 on the CPU, entries of each head.
    """

    keys: Tensor
    values: Tensor
    counts: Tensor


class Eviction:
    """Takes the layers of one sequence as they come and says what the policy keeps of each.

    Attributes:
        note: What of the allocation had to give way, in one sentence; "" if nothing had.
        forced: Protection filled the whole budget of every layer seen, so that the scores decided nothing.
        seconds: Time spent on features, scores and selection; of layers that ran on another device up to the moment
            their decision was known here.
    """

    def __init__(self, asked: Budgeted, sequence: SequenceFeatures) -> None:
        """Begin with no layer seen.

        Args:
            asked: The policy and its budget.
            sequence: The sequence's tokens; the budget is of as many entries.
        """
        self._policy, self._sequence = asked.policy, sequence
        self._budget = asked.entries(len(sequence.ids))
        self._keep = torch.full((sequence.structure.kv_heads,), self._budget, dtype=torch.int64)
        self._divider = Divider(asked.policy, len(sequence.structure.compressed), [self._budget])
        self._waiting: list[tuple[LayerFeatures, Scored]] = []  # only for a policy that divides by all scores
        self.note = ""
        self.forced = True
        self.seconds = 0.0

    def see(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, logsumexp: Tensor | None) -> Kept | None:
        """Decide on a layer; None if its budget depends on layers that come later (see `rest`).

        Args:
            layer: Index of the layer, which attends to the whole sequence; such layers come in the model's order.
            queries: (H, T, D) contiguous, post-RoPE.
            keys: (G, T, D) contiguous, post-RoPE.
            values: (G, T, D) contiguous.
            logsumexp: (H, T) float32 of the scaled causal logits, if known.
        """
        with self._timed():
            features = self._sequence.layer(layer, queries, keys, values, logsumexp)
            if self._policy.waits:
                self._waiting.append((features, score(self._policy, features, self._keep)))
                features.release()
                return None
            place = self._sequence.structure.compressed.index(layer)
            (decision,) = self._divider.decide(place, features)
            return self._kept(features, decision)

    def _kept(self, features: LayerFeatures, decision: Decision) -> Kept:
        self.forced &= decision.forced
        self.note = decision.note
        mask = decision.mask.unsqueeze(0)
        keys, values, counts = kept_entries(features.given("keys"), features.given("values"), mask)
        return Kept(keys, values, counts[0])

    def rest(self) -> Iterator[tuple[int, Kept]]:
        """What is kept of each layer that had to wait, with its index and in order, once all layers were seen."""
        if not self._waiting:
            return
        with self._timed():
            counts = divided(self._policy, [scored for _, scored in self._waiting], self._budget)
        for own in counts:
            with self._timed():
                features, scored = self._waiting.pop(0)  # its dense keys and values are let go with it
                scored = score(self._policy, features, own) if scored.one_budget else scored
                kept = self._kept(features, select(self._policy, scored, own, features))
            yield features.layer, kept

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
