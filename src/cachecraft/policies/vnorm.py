"""V-norm: values of large norm matter most; a single feature, for comparison."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """The norm of the value."""
    scores: Tensor = torch.linalg.vector_norm(f.values, dim=-1)
    return scores
