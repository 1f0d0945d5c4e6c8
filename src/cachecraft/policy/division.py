"""How a policy's budget is divided over the layers of one sequence: an allocation from outside, its own, or all alike.

Joins the pure functions of allocation.py with a policy's scores. A division that is known in advance, or needs one
layer's scores only, is decided layer by layer; one that needs the scores of all layers waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cachecraft.policy import allocation
from cachecraft.policy.allocation import Division, Shape
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import Decision, Scored, decide, protection, score, select
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.invariants import AllocationError, PolicyRaisedError
from cachecraft.policy.protection import clip_protection


class Divider:
    """Decides on the layers of one sequence, at several budgets; not for a policy that waits for all of them."""

    def __init__(self, policy: Policy, layers: int, keeps: Sequence[int]) -> None:
        """Begin with no layer seen.

        Args:
            policy: The policy, with the allocation chosen for it.
            layers: How many layers are compressed.
            keeps: Entries kept per kv head on average, one number for each budget.
        """
        self._policy, self._layers, self._keeps = policy, layers, tuple(keeps)
        self._plans: list[Division] | None = None

    def decide(self, place: int, layer: LayerFeatures) -> list[Decision]:
        """What stays of a layer.

        Args:
            place: Which of the compressed layers it is, from 0; the first one comes first.
            layer: The layer.

        Returns:
            A decision for each budget.

        Raises:
            BudgetError: A budget does not fit, or the allocation cannot meet it.
            InvariantError: The policy broke the contract; the subclass says how.
        """
        chosen = self._policy.allocation
        if chosen is None or chosen.name == "uniform":
            return decide(self._policy, layer, [_alike(layer, keep) for keep in self._keeps])
        if chosen.name == "adaptive":
            return decide_adaptive(self._policy, layer, self._keeps)
        if self._plans is None:
            self._plans = [self._plan(layer, keep) for keep in self._keeps]
        counts = [plan.counts[place] for plan in self._plans]
        if chosen.adaptive_heads:
            decisions = decide_adaptive(self._policy, layer, [int(own[0]) for own in counts])
        else:
            decisions = decide(self._policy, layer, counts)
        return [replace(each, note=plan.note) for each, plan in zip(decisions, self._plans, strict=True)]

    def _plan(self, layer: LayerFeatures, keep: int) -> Division:
        first, last, _ = protection(self._policy, layer, _alike(layer, keep))
        chosen = self._policy.allocation
        assert chosen is not None
        return chosen.planned(Shape(self._layers, layer.kv_heads, layer.tokens), keep, first + last)


def decide_adaptive(policy: Policy, layer: LayerFeatures, keeps: Sequence[int]) -> list[Decision]:
    """What stays of a layer whose heads share its budget by score.

    Args:
        policy: The policy.
        layer: The layer.
        keeps: Entries that the layer's heads keep on average, one number for each budget.

    Raises:
        BudgetError: A budget does not fit.
        InvariantError: The policy broke the contract; the subclass says how.
    """
    decisions: list[Decision] = []
    scored: Scored | None = None
    for keep in keeps:
        if scored is None or scored.one_budget:
            scored = score(policy, layer, _alike(layer, keep))
        counts = adaptive_counts(scored, keep)
        own = score(policy, layer, counts) if scored.one_budget else scored
        decisions.append(select(policy, own, counts, layer))
    return decisions


def adaptive_counts(scored: Scored, keep: int) -> Tensor:
    """(G,) int64: how a layer's heads share its budget of `keep` a head, by what was scored."""
    alike = torch.full(scored.scores.shape[:1], keep, dtype=torch.int64)
    return allocation.adaptive(scored.scores, _protected(scored, alike), keep)


def divided(policy: Policy, scored: Sequence[Scored], keep: int) -> Tensor:
    """Divide a budget by the scores of all layers: one threshold over the model, or the policy's own ``allocate``.

    Args:
        policy: A policy that waits.
        scored: What it scored of each layer.
        keep: Entries to keep per kv head on average.

    Returns:
        (L, G) int64, each from 1 to T, summing to exactly L * G * keep.

    Raises:
        AllocationError: The policy's division has another shape, type, sum or range.
        PolicyRaisedError: The policy's code raised.
    """
    scores = [each.scores for each in scored]
    heads, tokens = scores[0].shape
    if policy.allocation is not None:
        alike = torch.full((heads,), keep, dtype=torch.int64)
        return allocation.over_model(scores, [_protected(each, alike) for each in scored], keep)
    total = len(scores) * heads * keep
    try:
        counts = policy.allocate([each.clone() for each in scores], total, 1)
    except Exception as error:
        raise PolicyRaisedError(
            f"Policy {policy.name} raised {type(error).__name__} in allocate: {error}; it must divide every total."
        ) from error
    shape = (len(scores), heads)
    if not isinstance(counts, Tensor) or tuple(counts.shape) != shape or counts.dtype != torch.int64:
        raise AllocationError(f"Policy {policy.name} must allocate an int64 tensor of shape {shape}.")
    if int(counts.sum()) != total or int(counts.min()) < 1 or int(counts.max()) > tokens:
        raise AllocationError(
            f"Policy {policy.name} allocated {int(counts.sum())} entries, from {int(counts.min())} to "
            f"{int(counts.max())} a head; the sum must be {total} and each from 1 to {tokens}."
        )
    return counts


def _alike(layer: LayerFeatures, keep: int) -> Tensor:
    return torch.full((layer.kv_heads,), keep, dtype=torch.int64)


def _protected(scored: Scored, keep: Tensor) -> Tensor | None:
    if not (scored.first or scored.last):
        return None
    return clip_protection(scored.first, scored.last, keep.to(scored.scores.device), scored.scores.shape[1])
