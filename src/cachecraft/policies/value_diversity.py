"""Value diversity: KeyDiff's rule applied to values; a single feature, for comparison."""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import cosine_to_mean


def score_tokens(f: Features) -> Tensor:
    """Minus the cosine between each value and the mean of the unit values of its head."""
    return -cosine_to_mean(f.values)
