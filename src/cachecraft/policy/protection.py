"""Which entries are kept whatever their score: the first and last that a policy names, within its budget."""

from __future__ import annotations

import torch
from torch import Tensor


def clip_protection(first: int, last: int, keep: Tensor, tokens: int) -> Tensor:
    """Fit a policy's protection into the budget of each kv head.

    If ``first + last`` exceeds a head's budget, the first entries go before, then the most recent ones.

    Args:
        first: Entries protected at the beginning.
        last: Entries protected at the end.
        keep: (G,) int64, the budgets.
        tokens: T, the number of entries.

    Returns:
        (G, T) bool mask with at most ``keep`` entries per row.
    """
    if first + last <= tokens and int(keep.min()) >= first + last:
        mask = torch.zeros(keep.shape[0], tokens, dtype=torch.bool, device=keep.device)
        mask[:, :first] = True
        mask[:, tokens - last :] = True
        return mask
    sinks = keep.clamp(max=min(first, tokens))[:, None]
    recent = (keep[:, None] - sinks).clamp(max=min(last, tokens))
    places = torch.arange(tokens, device=keep.device)
    return (places < sinks) | (places >= tokens - recent)
