"""From a policy and a layer to the entries that stay: the one path that evaluation and prefill use.

Scores once for all budgets where the policy allows it, sorts once, checks every rule of the contract, and
records whether protection left anything to the scorer.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from cachecraft.errors import BudgetError, CacheCraftError
from cachecraft.policy.contract import Policy
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.invariants import (
    FeatureWriteError,
    PolicyRaisedError,
    check_protection,
    check_scores,
    check_selection,
    check_unchanged,
)
from cachecraft.policy.protection import clip_protection
from cachecraft.policy.selectors import Selector

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Decision:
    """Which entries of a layer stay.

    Attributes:
        mask: (G, T) bool.
        forced: Protection filled the whole budget of some kv head, so that its scores decided nothing.
        read_keep: The scorer read its budget, so the choice holds for that budget only.
        note: What of an allocation had to give way, in one sentence; "" if nothing had.
    """

    mask: Tensor
    forced: bool
    read_keep: bool
    note: str = ""


@dataclass(frozen=True, eq=False)
class Scored:
    """A policy's scores of a layer.

    Attributes:
        scores: (G, T) floating point, finite.
        read_keep: The scorer read its budget, so the scores hold for that budget only.
        first: Entries protected at the beginning.
        last: Entries protected at the end.
        protect_read_keep: ``protect`` read the budget, so ``first`` and ``last`` hold for that budget only.
    """

    scores: Tensor
    read_keep: bool
    first: int
    last: int
    protect_read_keep: bool = False

    @property
    def one_budget(self) -> bool:
        """Whether scores or protection hold for the budget only that they were asked at."""
        return self.read_keep or self.protect_read_keep


def keep_count(tokens: int, ratio: float | None = None, keep: int | None = None) -> int:
    """Entries kept per kv head of ``tokens`` entries, given a share to evict or a number to keep.

    Raises:
        BudgetError: Both or neither are given, the ratio is outside [0, 1), or the number is below 1.
    """
    if (ratio is None) == (keep is None):
        raise BudgetError("A budget is either a ratio to evict or a number of entries to keep; give exactly one.")
    if ratio is not None:
        if not 0 <= ratio < 1:
            raise BudgetError(f"A ratio of {ratio} cannot be evicted; give a share of at least 0 and below 1.")
        return max(1, int(tokens * (1 - ratio) + 1e-9))
    assert keep is not None
    if keep < 1:
        raise BudgetError(f"Keeping {keep} entries leaves an empty cache; keep at least 1.")
    return min(keep, tokens)


def _budget(keep: Tensor, layer: LayerFeatures) -> tuple[Tensor, list[int]]:
    counts: list[int] = keep.tolist() if keep.dim() == 1 else []
    whole = not (keep.is_floating_point() or keep.is_complex() or keep.dtype == torch.bool)
    if not whole or len(counts) != layer.kv_heads or min(counts) < 1 or max(counts) > layer.tokens:
        raise BudgetError(
            f"A budget of {keep.tolist()} does not fit layer {layer.layer}; give one whole number from 1 to "
            f"{layer.tokens} for each of its {layer.kv_heads} kv heads."
        )
    return keep.to(device=layer.device, dtype=torch.int64), counts


def _call(policy: Policy, layer: LayerFeatures, step: str, run: Callable[[], T]) -> T:
    """Run a policy's own code; what it raises becomes one sentence that names its line."""
    try:
        return run()
    except CacheCraftError:
        raise
    except Exception as error:
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == policy.origin]
        where = f" ({policy.origin}, line {places[-1].lineno})" if places else ""
        raise PolicyRaisedError(
            f"Policy {policy.name} raised {type(error).__name__} in {step} on layer {layer.layer}{where}: "
            f"{error}; it must give a result for every context."
        ) from error


def protection(policy: Policy, layer: LayerFeatures, keep: Tensor) -> tuple[int, int, bool]:
    """First and last entries protected at a budget, (G,) int64, and whether it read it; raises as `score`."""
    view = layer.view(keep)
    found = _call(policy, layer, "protect", lambda: policy.protect(view))
    first, last = check_protection(found, view, policy.name)
    return first, last, view.read_keep


def score(policy: Policy, layer: LayerFeatures, keep: Tensor) -> Scored:
    """Ask a policy for its protection and its scores.

    Args:
        policy: The policy.
        layer: The layer; what it caches serves the next policy too.
        keep: (G,) int64, the budget of each kv head.

    Raises:
        BudgetError: The budget does not fit the layer.
        InvariantError: The policy broke the contract; the subclass says how.
    """
    keep, _ = _budget(keep, layer)
    with torch.no_grad():
        if layer.changed():
            raise FeatureWriteError(
                f"Layer {layer.layer} was written to before policy {policy.name} saw it; build its features anew."
            )
        first, last, protect_read = protection(policy, layer, keep)
        scored = _score(policy, layer, keep, _clip(first, last, keep, layer))
        check_unchanged(layer.changed(), layer.layer, policy.name)
    return Scored(scored[0], scored[1], first, last, protect_read)


def _clip(first: int, last: int, keep: Tensor, layer: LayerFeatures) -> Tensor | None:
    return clip_protection(first, last, keep, layer.tokens) if first or last else None


def _score(policy: Policy, layer: LayerFeatures, keep: Tensor, protected: Tensor | None) -> tuple[Tensor, bool]:
    view = layer.view(keep, protected)
    scores = _call(policy, layer, "score_tokens", lambda: policy.score(view))
    check_scores(scores, view, policy.name)
    return scores.detach(), view.read_keep


def select(policy: Policy, scored: Scored, keep: Tensor, layer: LayerFeatures) -> Decision:
    """Turn scores into the entries that stay at one budget; arguments and errors as for :func:`score`."""
    keep, counts = _budget(keep, layer)
    with torch.no_grad():
        protected = _clip(scored.first, scored.last, keep, layer)
        decision = _select(policy, scored, keep, counts, protected, None, layer)
        check_unchanged(layer.changed(), layer.layer, policy.name)
    return decision


def _select(
    policy: Policy,
    scored: Scored,
    keep: Tensor,
    counts: list[int],
    protected: Tensor | None,
    ranks: Tensor | None,
    layer: LayerFeatures,
) -> Decision:
    scores = scored.scores
    view = layer.view(keep, protected)
    if ranks is not None:
        mask = ranks < keep[:, None]
    elif policy.custom_selector:
        # A copy each way: the policy may write into its scores or hand out the same mask again.
        mask = _call(policy, layer, "select_tokens_to_keep", lambda: policy.select(scores.clone(), keep.clone(), view))
        mask = mask.clone() if isinstance(mask, Tensor) else mask
    else:
        mask = (policy.selector or Selector("tokens"))(scores, keep, protected)
    check_selection(mask, keep, view, policy.name, protected)
    forced = False
    if protected is not None:
        filled = protected.sum(dim=-1).tolist()
        forced = any(full >= count < layer.tokens for full, count in zip(filled, counts, strict=True))
    return Decision(mask, forced, scored.read_keep)


def decide(policy: Policy, layer: LayerFeatures, keeps: Sequence[Tensor]) -> list[Decision]:
    """What a policy keeps of a layer at several budgets, scoring and sorting as rarely as it allows.

    Args:
        policy: The policy.
        layer: The layer; what it caches serves the next policy too.
        keeps: Budgets, each (G,) int64.

    Returns:
        A decision for each budget.

    Raises:
        BudgetError: A budget does not fit the layer.
        InvariantError: The policy broke the contract; the subclass says how.
    """
    decisions: list[Decision] = []
    selector = policy.selector or Selector("tokens")
    scored: Scored | None = None
    shared: tuple[int, int, Tensor | None, Tensor | None] | None = None  # first, last, protected, ranks
    for given in keeps:
        keep, counts = _budget(given, layer)
        fresh = scored is None or scored.read_keep
        if scored is None or scored.read_keep:
            scored = score(policy, layer, keep)
        with torch.no_grad():
            first, last = scored.first, scored.last
            if scored.protect_read_keep and not fresh:
                first, last, _ = protection(policy, layer, keep)
            roomy = min(counts) >= first + last <= layer.tokens  # then protection is the same at every such budget
            if roomy and shared is not None and not scored.read_keep and shared[:2] == (first, last):
                protected, ranks = shared[2:]
            else:
                protected = _clip(first, last, keep, layer)
                ranks = None if policy.custom_selector else selector.ranks(scored.scores, protected)
                shared = (first, last, protected, ranks) if roomy else shared
            decisions.append(_select(policy, scored, keep, counts, protected, ranks, layer))
    check_unchanged(layer.changed(), layer.layer, policy.name)
    return decisions
