"""V/K ratio: large values under small keys matter most (PagedEviction's token score, arXiv 2509.04377)."""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import value_key_ratio


def score_tokens(f: Features) -> Tensor:
    """Norm of the value over norm of the key."""
    return value_key_ratio(f.keys, f.values)
