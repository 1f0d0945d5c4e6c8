"""KeyDiff: keys that point away from the mean direction matter most (Park et al., 2025, arXiv 2504.15364)."""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import cosine_to_mean


def score_tokens(f: Features) -> Tensor:
    """Minus the cosine between each key and the mean of the unit keys of its head."""
    return -cosine_to_mean(f.keys)
