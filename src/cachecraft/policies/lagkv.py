"""LagKV: entries that stand out from the partition that follows them (Liang et al., 2025, arXiv 2504.04704).

Where a channel is constant over the following partition its scaled value is 0 (ours; the formula divides by zero).
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import at_least_one, rank_shares


def protect(f: Features, *, sinks: int = 4, lag: int = 128) -> tuple[int, int]:
    """The sinks, the last full partition, which nothing follows, and what is left over.

    A context without two full partitions keeps its sinks and its most recent entries.
    """
    if f.tokens < sinks + 2 * at_least_one("lag", lag):
        return sinks, 0
    return sinks, lag + (f.tokens - sinks) % lag


def score_tokens(f: Features, *, sinks: int = 4, lag: int = 128) -> Tensor:
    """The place of an entry within its partition, over the partition's size, by keys and values together."""
    scores = torch.ones(f.kv_heads, f.tokens, device=f.positions.device)
    if f.tokens < sinks + 2 * lag:
        after = f.tokens - sinks
        if after > 0:
            scores[:, sinks:] = torch.arange(after, device=scores.device) / after
        return scores
    end = f.tokens - (f.tokens - sinks) % lag
    worth = (_standing_out(f.keys[:, sinks:end], lag) + _standing_out(f.values[:, sinks:end], lag)) / 2
    scores[:, sinks : end - lag] = rank_shares(worth).flatten(1)  # worth: (G, P - 1, lag)
    return scores


def _standing_out(states: Tensor, lag: int) -> Tensor:
    """Softmax within each partition of the spread over channels, as the next partition scales them.

    (G, P * lag, D) -> (G, P - 1, lag).
    """
    parts = states.unflatten(1, (-1, lag))  # (G, P, lag, D)
    low, high = parts[:, 1:].aminmax(dim=2, keepdim=True)
    span = (high - low).masked_fill(high == low, torch.inf)  # what is divided by it is 0
    scaled: Tensor = (parts[:, :-1] - low) / span
    return scaled.std(dim=-1).softmax(dim=-1)
