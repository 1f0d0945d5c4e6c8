"""Hindsight: keeps what the question's and the reference answer's tokens attend to.

A reference line, not a policy (it sees the answer) and not a bound (attention is not everything that matters).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachecraft.evaluation.traces import Trace
from cachecraft.policy.selectors import token_order


def hindsight_orders(trace: Trace, queries: Sequence[Tensor], scalings: Sequence[float]) -> list[Tensor]:
    """Order the entries of each layer by the attention they receive from later tokens.

    Args:
        trace: The recorded context.
        queries: For each layer (H, N, D), post-RoPE queries of question and answer under the full cache.
        scalings: For each layer the factor of its dot products.

    Returns:
        For each layer (G, T) int64: entries, most attended first; attention is the softmax over the context,
        averaged over queries and over the heads of a group. Ties go to the more recent.
    """
    orders = []
    for layer, asked, scaling in zip(trace.layers, queries, scalings, strict=True):
        heads, tokens, width = layer.keys.shape
        grouped = asked.float().reshape(heads, -1, width)  # (G, H/G * N, D)
        weights = (grouped @ layer.keys.float().transpose(1, 2) * scaling).softmax(dim=-1)
        nothing = torch.zeros(heads, tokens, dtype=torch.bool)
        orders.append(token_order(weights.mean(dim=1), nothing))
    return orders
