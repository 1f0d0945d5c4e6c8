"""Causal attention, summed over queries, without ever holding a T x T matrix.

Pure functions on one layer: a window of last queries, the mass each key receives, and the mass it receives
from its near future. The queries of a group are folded into the rows of one product, so that keys are never
repeated for them. Nothing here caches or knows a policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK_FLOATS = 1 << 20  # of one block of logits: 4 MB, small enough to stay near a core
_BLOCK_ROWS = 128  # queries per block at most: more would waste work above the diagonal
# Powers of two are several times faster than exp, which also slows down on what underflows.
_LOG2_E = 1 / math.log(2)


def _grouped(queries: Tensor, kv_heads: int) -> Tensor:
    """(H, n, D) of any dtype -> (G, g * n, D) float32, rows of one kv head together."""
    heads, rows, width = queries.shape
    return queries.float().reshape(kv_heads, heads // kv_heads * rows, width)


def _future(rows: int, device: torch.device) -> Tensor:
    """(n, n) with minus infinity above the diagonal, to be added to logits."""
    return torch.full((rows, rows), -torch.inf, device=device).triu_(1)


def window_attention(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Causal softmax of the last queries over all keys.

    Args:
        queries: (H, w, D), the last ``w`` queries.
        keys: (G, T, D) float32.
        scaling: Factor of the logits.

    Returns:
        (G, H/G, w, T) float32, rows summing to 1.
    """
    kv_heads, tokens, _ = keys.shape
    heads, window, _ = queries.shape
    logits = (_grouped(queries, kv_heads) * scaling) @ keys.transpose(1, 2)
    logits = logits.view(kv_heads, heads // kv_heads, window, tokens)
    if window > 1:
        logits[..., tokens - window :] += _future(window, keys.device)
    return logits.softmax(dim=-1)


def _block_rows(group: int, columns: int) -> int:
    return max(1, min(_BLOCK_ROWS, _BLOCK_FLOATS // (group * columns)))


def received_attention(
    queries: Tensor, keys: Tensor, scaling: float, logsumexp: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention mass that each key receives from all queries that see it.

    Only blocks on and below the diagonal are computed, each small and each once.

    Args:
        queries: (H, T, D), any dtype.
        keys: (G, T, D) float32.
        scaling: Factor of the logits.
        logsumexp: (H, T) float32 normalisers of the rows, if known; computed on the way otherwise.

    Returns:
        The column sums, (G, H/G, T) float32, and the normalisers, (H, T) float32.
    """
    kv_heads, tokens, _ = keys.shape
    group = queries.shape[0] // kv_heads
    received = torch.zeros(kv_heads, group, tokens, device=keys.device)
    norms = torch.empty(queries.shape[:2], device=keys.device) if logsumexp is None else logsumexp.float()
    rows = _block_rows(group, tokens)
    future = _future(rows, keys.device)
    room = torch.empty(group * rows * tokens, device=keys.device)  # one block, used again and again
    ones = torch.ones(group, 1, rows, device=keys.device)
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        columns = keys[head].t()  # (D, T)
        for start in range(0, tokens, rows):
            end = min(start + rows, tokens)
            size = end - start
            query = queries[mine, start:end].float().reshape(group * size, -1)
            block = room[: group * size * end].view(group * size, end)
            if logsumexp is None:
                torch.mm(query * scaling, columns[:, :end], out=block)
            else:
                normaliser = norms[mine, start:end].reshape(-1, 1) * _LOG2_E
                query = query * (scaling * _LOG2_E)
                torch.addmm(normaliser, query, columns[:, :end], beta=-1, out=block)
            block = block.view(group, size, end)
            block[..., start:] += future[:size, :size]
            if logsumexp is None:
                highest = block.amax(dim=-1)
                block = block.softmax(dim=-1)
                # The largest weight is at least 1/T, so its logarithm is safe: no second pass is needed.
                norms[mine, start:end] = highest - block.amax(dim=-1).log()
            else:
                block = block.exp2_()
            received[head, :, :end] += (ones[..., :size] @ block).squeeze(1)
    return received, norms


def local_received_attention(queries: Tensor, keys: Tensor, scaling: float, logsumexp: Tensor, span: int) -> Tensor:
    """Mean attention that each key receives from itself and the ``span - 1`` queries after it.

    The weights are those of the full causal softmax; only the band is computed.

    Args:
        queries: (H, T, D), any dtype.
        keys: (G, T, D) float32.
        scaling: Factor of the logits.
        logsumexp: (H, T) float32 normalisers of the rows.
        span: Width of the band, at least 1.

    Returns:
        (G, H/G, T) float32: the sum of a_ij over j <= i < min(j + span, T), over the number of those queries.
    """
    kv_heads, tokens, _ = keys.shape
    group = queries.shape[0] // kv_heads
    span = min(span, tokens)
    received = torch.zeros(kv_heads, group, tokens, device=keys.device)
    rows = _block_rows(kv_heads * group, min(tokens, span + _BLOCK_ROWS))
    offsets = torch.arange(rows + span - 1, device=keys.device)
    behind = torch.arange(rows, device=keys.device)[:, None] + (span - 1) - offsets  # i - j
    outside = torch.zeros(behind.shape, device=keys.device)  # (b, b + span - 1)
    outside.masked_fill_((behind < 0) | (behind >= span), -torch.inf)
    for start in range(0, tokens, rows):
        end = min(start + rows, tokens)
        first = max(0, start - span + 1)
        skipped = first - (start - span + 1)  # columns of the pattern that lie before the first key
        query = _grouped(queries[:, start:end], kv_heads) * (scaling * _LOG2_E)  # (G, g*b, D)
        normaliser = logsumexp[:, start:end].reshape(kv_heads, -1, 1) * _LOG2_E
        block = torch.baddbmm(normaliser, query, keys[:, first:end].transpose(1, 2), beta=-1)
        block = block.view(kv_heads, group, end - start, end - first)
        block += outside[: end - start, skipped : skipped + end - first]
        received[..., first:end] += block.exp2_().sum(dim=2)
    seen_by = torch.arange(tokens, 0, -1, device=keys.device).clamp(max=span)
    return received / seen_by
