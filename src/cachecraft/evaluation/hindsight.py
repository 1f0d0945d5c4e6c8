"""Hindsight: keeps what the question's and the reference answer's tokens attend to.

A reference line, not a policy (it sees the answer) and not a bound (attention is not everything that matters).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cachecraft.evaluation.traces import Trace
from cachecraft.policy.selectors import token_order
from cachecraft.policy.softcap import soft_capped
from cachecraft.runtime.structure import ModelStructure


def hindsight_orders(structure: ModelStructure, trace: Trace, queries: Sequence[Tensor]) -> dict[int, Tensor]:
    """Order the entries of each compressed layer by the attention they receive from later tokens.

    Args:
        structure: The model's structure.
        trace: The recorded context.
        queries: For each layer (H, N, D), post-RoPE queries of question and answer under the full cache.

    Returns:
        For each compressed layer (G, T) int64: entries, most attended first; attention is the softmax over the
        context, averaged over queries and over the heads of a group. Ties go to the more recent.
    """
    orders = {}
    for layer in structure.compressed:
        keys = trace.layers[layer].keys.float()
        heads, _, width = keys.shape
        grouped = queries[layer].float().reshape(heads, -1, width)  # (G, H/G * N, D)
        logits = grouped @ keys.transpose(1, 2) * structure.scaling(layer)
        weights = soft_capped(logits, structure.softcap).softmax(dim=-1)
        orders[layer] = token_order(weights.mean(dim=1), None)
    return orders
