"""Random: scores drawn from the content's seed; the floor that every policy must beat."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features, *, draw: int = 0) -> Tensor:
    """Uniform in [0, 1); another ``draw`` gives another independent choice."""
    scores = torch.rand(f.kv_heads, f.tokens, generator=f.generator(draw))
    return scores.to(f.positions.device)
