"""StreamingLLM: the first entries and the most recent ones (Xiao et al., 2023, arXiv 2309.17453).

Entries keep the positions they had; the source's rotation to positions inside the cache is not done.
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def protect(f: Features, *, sinks: int = 4) -> tuple[int, int]:
    """The attention sinks."""
    return sinks, 0


def score_tokens(f: Features) -> Tensor:
    """The later, the better."""
    places = torch.arange(f.tokens, dtype=torch.float32, device=f.positions.device)
    return places.expand(f.kv_heads, f.tokens)
