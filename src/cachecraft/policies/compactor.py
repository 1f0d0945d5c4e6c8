"""Compactor: leverage of the keys plus attention inside chunks (Chari & Van Durme, 2025, arXiv 2507.08143).

Both parts are those of the policies leverage and noncausal, over the entries between the protected ones. The weight
of the leverage is the share that is evicted, which each kv head takes from its own budget, unless ``blend`` is given.
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import attended_values, sketched_leverage, z_scores


def protect(f: Features, *, first: int = 8, last: int = 4) -> tuple[int, int]:
    """The first entries and the most recent."""
    return first, last


def score_tokens(
    f: Features,
    *,
    first: int = 8,
    last: int = 4,
    blend: float = -1.0,
    sketch: int = 48,
    ridge: float = 0.01,
    chunk: int = 256,
    kernel: int = 3,
    draw: int = 0,
) -> Tensor:
    """Leverage times the share evicted, plus chunk attention; the protected entries get the highest score."""
    if f.tokens <= first + last:
        return torch.zeros(f.kv_heads, f.tokens, device=f.positions.device)
    inside = slice(first, f.tokens - last)
    unusual = z_scores(sketched_leverage(f.keys_unrotated[:, inside], sketch, ridge, f.generator(draw)))
    attended = z_scores(attended_values(f.chunk_attention(chunk, first, last), f.values[:, inside], kernel))
    scores = attended + (blend if blend >= 0 else 1 - f.keep[:, None] / f.tokens) * unusual
    highest = scores.max().expand(f.kv_heads, 1)
    return torch.cat((highest.expand(-1, first), scores, highest.expand(-1, last)), dim=-1)
