"""K-norm: keys of small norm matter most (Devoto et al., 2024, arXiv 2406.11430)."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Minus the norm of the key."""
    scores: Tensor = -torch.linalg.vector_norm(f.keys, dim=-1)
    return scores
