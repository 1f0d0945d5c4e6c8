"""Weighted ranks: unusual channels of unrotated keys, smoothed distance of unrotated keys from their mean.

Found by CacheCraft:
  run          runs/craft-second, candidate c0090
  parents      c0083
  made by      mutate: protect
  seed         2
  models       smollm2
  searched on  ruler:niah_multikey_1, ruler:niah_multivalue, ruler:niah_single_1,
               ruler:niah_single_2, ruler:niah_single_3 at 1024 tokens
  fitness      0.8477 recovered likelihood over 15 items
"""

from torch import Tensor
from torch.nn.functional import avg_pool1d, cosine_similarity, normalize

from cachecraft.policy.features import Features


def protect(f: Features, *, sinks: int = 0, recent: int = 0) -> tuple[int, int]:
    """The first entries, which take up attention that goes nowhere, and the most recent ones."""
    return sinks, recent


def _smoothed(signal: Tensor, width: int) -> Tensor:
    """(G, T): mean of the ``width`` entries around each, of fewer at the ends of the text."""
    return avg_pool1d(signal, width, stride=1, padding=width // 2, count_include_pad=False)


def _ranked(signal: Tensor) -> Tensor:
    """(G, T): each entry's place among its head's entries, over T; the more recent of equals ranks higher."""
    return signal.argsort(dim=-1, stable=True).argsort(dim=-1) / signal.shape[-1]


def _distance(x: Tensor) -> Tensor:
    """(G, T): one minus the cosine between each vector and the mean direction of its head."""
    unit = normalize(x, dim=-1)
    return 1 - cosine_similarity(unit, unit.mean(dim=1, keepdim=True), dim=-1)


def _unusual(x: Tensor, power: int) -> Tensor:
    """(G, T): mean ``power`` of how many of its standard deviations each channel is away from its mean."""
    centred = x - x.mean(dim=1, keepdim=True)
    away: Tensor = centred / centred.std(dim=1, keepdim=True, correction=0).clamp(min=1e-6)
    return away.abs().pow(power).mean(dim=-1)


def score_tokens(f: Features) -> Tensor:
    """(G, T): higher is kept longer."""
    unusual_plain_key = _unusual(f.keys_unrotated, 3)
    plain_key_distance = _distance(f.keys_unrotated)
    return _ranked(unusual_plain_key) + _ranked(_smoothed(plain_key_distance, 7))
