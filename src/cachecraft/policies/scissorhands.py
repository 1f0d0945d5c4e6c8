"""Scissorhands: entries that recent queries often attended to stay (Liu et al., 2023, arXiv 2305.17118).

An attention counts where it reaches the uniform share, 1 / (entries that the query sees), times ``share``. The
sources differ here: one counts the highest tenth of each query's attention, which is ``quantile=0.9``. Averaging the
counts over the group is ours.
"""

import math

import torch
from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import at_least_one

_FLOATS = 1 << 21  # of the attention held at a time: 8 MB
_ROUNDING = 1e-6  # equal attention on all entries reaches its own share
_TINY = 1e-38  # a weight of zero is no attention


def protect(f: Features, *, sinks: int = 4, recent: int = 10) -> tuple[int, int]:
    """Attention sinks and a short recent window."""
    return sinks, recent


def score_tokens(f: Features, *, window: int = 400, share: float = 1.0, quantile: float = 0.0) -> Tensor:
    """How often the last ``window`` queries attended to an entry, of those that saw it, averaged over the group."""
    start = max(0, f.tokens - at_least_one("window", window))
    rows = max(1, _FLOATS // (f.heads * f.tokens))
    counts = torch.zeros(f.kv_heads, f.tokens, device=f.positions.device)
    for first in range(start, f.tokens, rows):
        last = min(first + rows, f.tokens)
        weights = f.attention_rows(first, last)  # (G, H/G, rows, last)
        seen = range(first + 1, last + 1)  # how many entries each query sees
        needed = _quantiles(weights, seen, quantile) if quantile > 0 else _shares(weights, seen, share)
        attended = weights.ge_((needed * (1 - _ROUNDING)).clamp(min=_TINY))  # 1 or 0; what is not seen weighs 0
        counts[:, :last] += attended.sum(dim=(1, 2)) / attended.shape[1]
    queries = f.tokens - torch.arange(f.tokens, device=counts.device).clamp(min=start)  # that saw each entry
    return counts / queries


def _shares(weights: Tensor, seen: range, share: float) -> Tensor:
    """What each query has to give: (rows, 1)."""
    return torch.tensor([share / count for count in seen], device=weights.device)[:, None]


def _quantiles(weights: Tensor, seen: range, quantile: float) -> Tensor:
    """The ``quantile`` of the weights that each query sees, the nearest one that exists: (G, H/G, rows, 1)."""
    above = [count - max(1, math.ceil(min(quantile, 1.0) * count)) for count in seen]
    highest = weights.topk(max(above) + 1, dim=-1).values
    places = torch.tensor(above, device=weights.device)[:, None]
    return highest.gather(-1, places.expand(*weights.shape[:2], -1, 1))
