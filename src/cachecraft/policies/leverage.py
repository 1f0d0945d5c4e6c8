"""Leverage: keys that the other keys cannot stand for (Compactor's first half; Chari & Van Durme, arXiv 2507.08143).

Ridge leverage scores of the keys before the rotation, centred and projected at random to ``sketch`` channels. The
projection is drawn from the content's seed, so that it repeats; ``draw`` gives another one.
"""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import sketched_leverage, z_scores


def score_tokens(f: Features, *, sketch: int = 48, ridge: float = 0.01, draw: int = 0) -> Tensor:
    """Leverage of the key among its head's, standardised over the layer."""
    return z_scores(sketched_leverage(f.keys_unrotated, sketch, ridge, f.generator(draw)))
