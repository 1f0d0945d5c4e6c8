"""Causal attention of models that soft-cap their logits: what attention.py offers, for those few models.

Plain blocks and not the fused products of attention.py, which a soft-cap between product and exponential forbids.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK_FLOATS = 1 << 20  # of one block of logits: 4 MB, small enough to stay near a core
_BLOCK_ROWS = 128  # queries per block at most: more would waste work above the diagonal


def soft_capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Squash scaled logits, in place, by ``softcap * tanh(logits / softcap)``; without a softcap leave them alone."""
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _logits(queries: Tensor, keys: Tensor, first: int, scaling: float, softcap: float) -> Tensor:
    """Causal logits (G, H/G, n, m) of the queries (H, n, D) at entries ``first …`` over (G, m, D) keys from 0 on."""
    kv_heads, columns, width = keys.shape
    heads, rows, _ = queries.shape
    folded = queries.float().reshape(kv_heads, heads // kv_heads * rows, width) * scaling
    logits = soft_capped(folded @ keys.transpose(1, 2), softcap).view(kv_heads, -1, rows, columns)
    future = torch.full((rows, columns), -torch.inf, device=keys.device).triu_(first + 1)
    return logits.add_(future)


def capped_rows(queries: Tensor, keys: Tensor, scaling: float, softcap: float) -> Tensor:
    """Causal softmax of the last queries over all keys.

    Args:
        queries: (H, n, D), the last ``n`` queries.
        keys: (G, T, D) float32.
        scaling: Factor of the logits.
        softcap: Limit of the scaled logits.

    Returns:
        (G, H/G, n, T) float32, rows summing to 1.
    """
    return _logits(queries, keys, keys.shape[1] - queries.shape[1], scaling, softcap).softmax(dim=-1)


def capped_received(
    queries: Tensor, keys: Tensor, scaling: float, softcap: float, logsumexp: Tensor | None = None, span: int = 0
) -> tuple[Tensor, Tensor]:
    """Attention mass that each key receives from the queries that see it.

    Args:
        queries: (H, T, D), any dtype.
        keys: (G, T, D) float32.
        scaling: Factor of the logits.
        softcap: Limit of the scaled logits.
        logsumexp: (H, T) float32 normalisers of the rows, if known; computed on the way otherwise.
        span: Only from itself and the ``span - 1`` queries after it, which needs the normalisers; 0 for all.

    Returns:
        The column sums, (G, H/G, T) float32, and the normalisers, (H, T) float32.
    """
    kv_heads, tokens, _ = keys.shape
    heads = queries.shape[0]
    received = torch.zeros(kv_heads, heads // kv_heads, tokens, device=keys.device)
    norms = torch.empty(heads, tokens, device=keys.device) if logsumexp is None else logsumexp.float()
    rows = max(1, min(_BLOCK_ROWS, _BLOCK_FLOATS // (heads * min(tokens, (span or tokens) + _BLOCK_ROWS))))
    for start in range(0, tokens, rows):
        end = min(start + rows, tokens)
        first = max(0, start - span + 1) if span else 0
        logits = _logits(queries[:, start:end], keys[:, first:end], start - first, scaling, softcap)
        if logsumexp is None:
            norms[:, start:end] = logits.logsumexp(dim=-1).flatten(0, 1)
        weights = logits.sub_(norms[:, start:end].reshape(*logits.shape[:3], 1)).exp_()
        if span:
            weights.triu_(start - first - span + 1)
        received[..., first:end] += weights.sum(dim=2)
    return received, norms
