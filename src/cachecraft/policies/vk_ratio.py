"""V/K ratio: large values under small keys matter most (PagedEviction's token score, arXiv 2509.04377)."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Norm of the value over norm of the key."""
    keys: Tensor = torch.linalg.vector_norm(f.keys, dim=-1).clamp(min=1e-12)  # a zero key gives no infinity
    values: Tensor = torch.linalg.vector_norm(f.values, dim=-1)
    return values / keys
