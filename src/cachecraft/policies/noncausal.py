"""Non-causal attention inside chunks (Compactor's second half; Chari & Van Durme, 2025, arXiv 2507.08143).

The last chunk is as long as what is left: nothing is padded, so that no weight is lost to padding.
"""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import attended_values, z_scores


def score_tokens(f: Features, *, chunk: int = 256, kernel: int = 3) -> Tensor:
    """Attention from all queries of the chunk, times the value's norm, smoothed, standardised over the layer."""
    return z_scores(attended_values(f.chunk_attention(chunk), f.values, kernel))
