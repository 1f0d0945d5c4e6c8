"""Value diversity: KeyDiff's rule applied to values; a single feature, for comparison."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Minus the cosine between each value and the mean of the unit values of its head."""
    values = f.values
    norms = torch.linalg.vector_norm(values, dim=-1).clamp(min=1e-12)  # (G, T)
    mean = norms.reciprocal()[:, None, :] @ values / f.tokens  # (G, 1, D)
    length = torch.linalg.vector_norm(mean, dim=-1).clamp(min=1e-12)  # (G, 1)
    cosine: Tensor = (values @ mean.transpose(1, 2)).squeeze(-1) / (norms * length)
    return -cosine
