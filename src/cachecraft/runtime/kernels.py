"""Attention for what the fused kernels do not do: soft-capped logits, sliding windows, any mask, with the log-sum-exp.

Pure functions on tensors, in blocks, so that no T x T matrix is ever held. Where neither a soft-cap nor a window acts,
`causal_attention` is the fused kernel. Nothing here knows a cache, a layer or a model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cachecraft.policy.softcap import soft_capped
from cachecraft.runtime import compat

_BLOCK_FLOATS = 1 << 20  # of one block of logits, 4 MB
_BLOCK_QUERIES = 128  # more would waste work above the diagonal


def visible(entries: int, new: int, device: torch.device, *, window: int | None = None) -> Tensor | None:
    """Which entries each of the newest tokens sees, where the entries lie next to each other up to the newest.

    Args:
        entries: S, the new tokens included.
        new: N, the newest of them, which ask.
        device: Where the mask is wanted.
        window: How many entries a token sees, itself included; None for all before it.

    Returns:
        (N, S) bool, or None if every new token sees everything.
    """
    if new == 1 and (window is None or entries <= window):
        return None
    entry = torch.arange(entries, device=device)
    own = entry[entries - new :].unsqueeze(1)
    seen = entry <= own
    return seen if window is None else seen & (entry > own - window)


def masked_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    *,
    softcap: float | None = None,
    seen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention under any mask, in float32 whatever the inputs are.

    Args:
        query: (n, R, D).
        keys: (n, S, D).
        values: (n, S, E).
        scale: Factor of the dot products.
        softcap: Limit of the scaled logits.
        seen: (R, S) or (n, R, S) bool, which entries each query may see; None for all.

    Returns:
        (n, R, E) output in the query's dtype and (n, R) float32 log-sum-exp of the logits. A query that sees nothing
        gets zeros and minus infinity, so that parts can be merged.
    """
    columns, rows = keys.float().transpose(1, 2), values.float()
    output = query.new_empty(*query.shape[:2], values.shape[-1])
    norms = torch.empty(query.shape[:2], device=query.device)
    size = max(1, _BLOCK_FLOATS // max(1, query.shape[0] * keys.shape[1]))
    for start in range(0, query.shape[1], size):
        part = slice(start, start + size)
        logits = soft_capped((query[:, part].float() * scale) @ columns, softcap)
        if seen is not None:
            logits.masked_fill_(~seen[..., part, :], float("-inf"))
        norm = logits.logsumexp(dim=-1)
        norms[:, part] = norm
        weights = logits.sub_(norm.clamp_min(torch.finfo(torch.float32).min).unsqueeze(-1)).exp_()
        output[:, part] = (weights @ rows).to(query.dtype)
    return output, norms


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    softcap: float | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention of a whole sequence over itself.

    Args:
        query: (B, H, T, D).
        key: (B, G, T, D), G a divisor of H.
        value: (B, G, T, E).
        scale: Factor of the dot products.
        softcap: Limit of the scaled logits.
        window: How many entries a token sees, itself included; None for all before it.

    Returns:
        (B, H, T, E) output and (B, H, T) float32 log-sum-exp of the scaled, capped and masked logits, or None where a
        fused kernel does not give it.
    """
    rows, heads, tokens, width = query.shape
    kv_heads = key.shape[1]
    window = None if window is None or window >= tokens else window
    if softcap is None and window is None:
        return compat.fused_causal_attention(query, key, value, scale)
    outputs, norms = [], []
    for start in range(0, tokens, _BLOCK_QUERIES):
        end = min(start + _BLOCK_QUERIES, tokens)
        first = 0 if window is None else max(0, start - window + 1)
        seen = visible(end - first, end - start, query.device, window=window)
        # The query heads of a kv head become rows of one matrix, so that no key is repeated for its group.
        output, norm = masked_attention(
            query[:, :, start:end].reshape(rows * kv_heads, -1, width),
            key[:, :, first:end].flatten(0, 1),
            value[:, :, first:end].flatten(0, 1),
            scale,
            softcap=softcap,
            seen=None if seen is None else seen.repeat(heads // kv_heads, 1),
        )
        outputs.append(output.view(rows, heads, end - start, -1))
        norms.append(norm.view(rows, heads, end - start))
    return torch.cat(outputs, dim=2), torch.cat(norms, dim=2)
