"""How many entries each layer and kv head keeps where a policy divides the budget itself; elsewhere all keep alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachecraft.policy.contract import Policy
from cachecraft.policy.invariants import AllocationError, PolicyRaisedError


def allocated(policy: Policy, scores: Sequence[Tensor], total: int, tokens: int) -> Tensor:
    """Ask a policy to divide a budget over the model.

    Args:
        policy: A policy with an `allocate`.
        scores: For each layer (G, T) scores.
        total: Entries to keep in all layers and heads together.
        tokens: T, the most that one head can keep.

    Returns:
        (L, G) int64, each from 1 to T, summing to exactly `total`.

    Raises:
        AllocationError: The division has another shape, type, sum or range.
        PolicyRaisedError: The policy's code raised.
    """
    try:
        counts = policy.allocate([each.clone() for each in scores], total, 1)
    except Exception as error:
        raise PolicyRaisedError(
            f"Policy {policy.name} raised {type(error).__name__} in allocate: {error}; it must divide every total."
        ) from error
    shape = (len(scores), scores[0].shape[0])
    if not isinstance(counts, Tensor) or tuple(counts.shape) != shape or counts.dtype != torch.int64:
        raise AllocationError(f"Policy {policy.name} must allocate an int64 tensor of shape {shape}.")
    if int(counts.sum()) != total or int(counts.min()) < 1 or int(counts.max()) > tokens:
        raise AllocationError(
            f"Policy {policy.name} allocated {int(counts.sum())} entries, from {int(counts.min())} to "
            f"{int(counts.max())} a head; the sum must be {total} and each from 1 to {tokens}."
        )
    return counts
