"""An example policy: entries whose values are large for their keys, away from the average key.

Try it with `cachecraft check examples/my_policy.py`, then with `cachecraft evaluate --policy examples/my_policy.py …`.
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def protect(f: Features, *, sinks: int = 4, recent: int = 8) -> tuple[int, int]:
    """The first entries, which models lean on whatever they say, and a few recent ones."""
    return sinks, recent


def score_tokens(f: Features, *, weight: float = 0.5) -> Tensor:
    """A weighted sum of two ranks, so that neither signal's scale matters: (G, T)."""
    strength = f.values.norm(dim=-1) / f.keys.norm(dim=-1)
    mean_key = torch.nn.functional.normalize(f.keys, dim=-1).mean(dim=1, keepdim=True)
    novelty = -torch.cosine_similarity(f.keys, mean_key, dim=-1)
    return weight * ranks(strength) + (1 - weight) * ranks(novelty)


def ranks(signal: Tensor) -> Tensor:
    """Each entry's place among those of its head, from 0 to 1: (G, T)."""
    return signal.argsort(dim=-1).argsort(dim=-1) / signal.shape[-1]
