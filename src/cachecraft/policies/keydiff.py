"""KeyDiff: keys that point away from the mean direction matter most (Park et al., 2025, arXiv 2504.15364)."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Minus the cosine between each key and the mean of the unit keys of its head."""
    keys = f.keys
    norms = torch.linalg.vector_norm(keys, dim=-1).clamp(min=1e-12)  # (G, T)
    mean = norms.reciprocal()[:, None, :] @ keys / f.tokens  # (G, 1, D)
    length = torch.linalg.vector_norm(mean, dim=-1).clamp(min=1e-12)  # (G, 1)
    cosine: Tensor = (keys @ mean.transpose(1, 2)).squeeze(-1) / (norms * length)
    return -cosine
