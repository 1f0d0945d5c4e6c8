"""Attention, summed over queries, without ever holding a T x T matrix.

Pure functions on one layer: some rows of the causal weights, the mass each key receives, the mass it receives
from its near future, and the mass it receives inside chunks in both directions. The queries of a group are folded
into the rows of one product, so that keys are never repeated for them. Nothing here caches or knows a policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK_FLOATS = 1 << 20  # of one block of logits: 4 MB, small enough to stay near a core
_BLOCK_ROWS = 128  # queries per block at most: more would waste work above the diagonal
_ROW_STEP = 32  # products of a multiple of this many rows are up to a tenth faster
_BAND_COLUMNS = (16, 128)  # keys per block of a band, at least and at most
# Powers of two are several times faster than exp, which also slows down on what underflows.
_LOG2_E = 1 / math.log(2)


def _grouped(queries: Tensor, kv_heads: int) -> Tensor:
    """(H, n, D) of any dtype -> (G, g * n, D) float32, rows of one kv head together."""
    heads, rows, width = queries.shape
    return queries.float().reshape(kv_heads, heads // kv_heads * rows, width)


def _future(rows: int, device: torch.device) -> Tensor:
    """(n, n) with minus infinity above the diagonal, to be added to logits."""
    return torch.full((rows, rows), -torch.inf, device=device).triu_(1)


def attention_rows(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Causal softmax of some neighbouring queries over all entries that the last of them sees.

    Args:
        queries: (H, n, D), the queries at the entries ``m - n … m - 1``.
        keys: (G, m, D) float32, all keys up to the last of these queries.
        scaling: Factor of the logits.

    Returns:
        (G, H/G, n, m) float32, rows summing to 1.
    """
    kv_heads, seen, _ = keys.shape
    heads, rows, _ = queries.shape
    logits = (_grouped(queries, kv_heads) * scaling) @ keys.transpose(1, 2)
    logits = logits.view(kv_heads, heads // kv_heads, rows, seen)
    if rows > 1:
        logits[..., seen - rows :] += _future(rows, keys.device)
    return logits.softmax(dim=-1)


def _block_rows(group: int, columns: int) -> int:
    rows = min(_BLOCK_ROWS, _BLOCK_FLOATS // (group * columns))
    return max(1, rows // _ROW_STEP * _ROW_STEP or rows)


def _summed_softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Column sums (..., m) of the softmax of (..., n, m) and the log-sum-exp (..., n) of its rows.

    The logits are those of a power of 2, and are overwritten.
    """
    highest = logits.amax(dim=-1, keepdim=True)
    totals = logits.sub_(highest).exp2_().sum(dim=-1)
    sums = totals.reciprocal().unsqueeze(-2) @ logits  # no second pass to normalise the rows
    return sums.squeeze(-2), (highest.squeeze(-1) + totals.log2()) / _LOG2_E


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
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        columns = keys[head].t()  # (D, T)
        for start in range(0, tokens, rows):
            end = min(start + rows, tokens)
            size = end - start
            query = (queries[mine, start:end].float() * (scaling * _LOG2_E)).reshape(group * size, -1)
            block = room[: group * size * end].view(group * size, end)
            if logsumexp is None:
                torch.mm(query, columns[:, :end], out=block)
            else:
                normaliser = norms[mine, start:end].reshape(-1, 1) * _LOG2_E
                torch.addmm(normaliser, query, columns[:, :end], beta=-1, out=block)
            block = block.view(group, size, end)
            block[..., start:] += future[:size, :size]
            if logsumexp is None:
                sums, norms[mine, start:end] = _summed_softmax(block)
                received[head, :, :end] += sums
            else:
                received[head, :, :end] += block.exp2_().sum(dim=1)
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
    kv_heads, tokens, width = keys.shape
    heads = queries.shape[0]
    span = min(span, tokens)
    columns = max(_BAND_COLUMNS[0], min(span // 2, _BAND_COLUMNS[1]))  # keys per block
    rows = columns + span - 1  # the queries that may see one of them
    blocks = -(-tokens // columns)
    # One channel more carries the normaliser, and rows after the end one of infinity: their weights are 0.
    query = torch.zeros(blocks * columns + span - 1, width + 1, device=keys.device)
    query[tokens:, width] = -torch.inf
    key = torch.ones(blocks * columns, width + 1, device=keys.device)
    overlapping = query.as_strided((blocks, rows, width + 1), (columns * (width + 1), width + 1, 1))
    ahead = torch.arange(rows, device=keys.device)[:, None] - torch.arange(columns, device=keys.device)  # i - j
    outside = torch.zeros(rows, columns, device=keys.device)
    outside.masked_fill_((ahead < 0) | (ahead >= span), -torch.inf)
    received = torch.empty(heads, blocks, columns, device=keys.device)
    at_once = max(1, min(blocks, _BLOCK_FLOATS // (rows * columns)))
    room = torch.empty(at_once, rows, columns, device=keys.device)  # used again and again
    for head in range(heads):
        if head % (heads // kv_heads) == 0:
            key[:tokens, :width] = keys[head // (heads // kv_heads)]
        query[:tokens, :width] = queries[head].float() * (scaling * _LOG2_E)
        query[:tokens, width] = logsumexp[head] * -_LOG2_E
        key_blocks = key.view(blocks, columns, width + 1).transpose(1, 2)
        for start in range(0, blocks, at_once):
            part = slice(start, min(start + at_once, blocks))
            block = torch.bmm(overlapping[part], key_blocks[part], out=room[: part.stop - start])
            block += outside
            torch.sum(block.exp2_(), dim=1, out=received[head, part])
    seen_by = torch.arange(tokens, 0, -1, device=keys.device).clamp(max=span)
    return received.view(kv_heads, heads // kv_heads, -1)[..., :tokens] / seen_by


def chunk_attention(queries: Tensor, keys: Tensor, size: int) -> Tensor:
    """Attention that each key receives inside its chunk, from the queries before it and after it alike.

    Args:
        queries: (H, T, D), any dtype.
        keys: (G, T, D) float32.
        size: Entries per chunk; the last chunk may be shorter.

    Returns:
        (G, H/G, T) float32: the column sums of the softmax of the unscaled products within each chunk.
    """
    kv_heads, tokens, _ = keys.shape
    group = queries.shape[0] // kv_heads
    received = torch.zeros(kv_heads, group, tokens, device=keys.device)
    rows = _block_rows(kv_heads * group, min(size, tokens))
    for start in range(0, tokens, size):
        end = min(start + size, tokens)
        key = keys[:, start:end].transpose(1, 2)
        for row in range(start, end, rows):
            query = _grouped(queries[:, row : min(row + rows, end)], kv_heads) * _LOG2_E
            logits = (query @ key).view(kv_heads, group, -1, end - start)
            received[..., start:end] += _summed_softmax(logits)[0]
    return received
