"""H2O: the entries of most attention in total, and recent ones (Zhang et al., 2023, arXiv 2306.14048).

Half of the budget is a recent window. Sums are not divided by the number of queries, so early entries gain:
that is the published method, and observed_attention is the other one.
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def protect(f: Features) -> tuple[int, int]:
    """Half of the budget, of the smallest one where heads differ."""
    return 0, int(f.keep.min()) // 2


def score_tokens(f: Features) -> Tensor:
    """Attention received in total, averaged over the group."""
    received = f.attention_received()  # means over the T - j queries that see j
    return received.mean(dim=1) * torch.arange(f.tokens, 0, -1, device=received.device)
