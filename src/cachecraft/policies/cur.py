"""CUR: large keys and values among their neighbours (CurDKV; Sengupta et al., 2025, arXiv 2509.15038).

The squared norm stands for the leverage score, as the source's own approximation has it.
"""

from torch import Tensor
from torch.nn.functional import pad

from cachecraft.policy.features import Features
from cachecraft.policy.signals import at_least_one


def protect(f: Features, *, sinks: int = 4) -> tuple[int, int]:
    """The attention sinks."""
    return sinks, 0


def score_tokens(f: Features, *, window: int = 16) -> Tensor:
    """The key's share of its window's squared norms, times the value's."""
    return _share(f.keys, window) * _share(f.values, window)


def _share(states: Tensor, window: int) -> Tensor:
    """Squared norm over the sum of its aligned window, whose last one may be shorter: (G, T, D) -> (G, T)."""
    squares = states.square().sum(dim=-1)
    windows = pad(squares, (0, -squares.shape[-1] % at_least_one("window", window))).unflatten(-1, (-1, window))
    shares: Tensor = windows / windows.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return shares.flatten(1)[:, : squares.shape[-1]]
