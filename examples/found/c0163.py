"""Weighted sum: standardised logarithm of unusual channels of unrotated keys and more.

Found by CacheCraft:
  run          runs/craft-first, candidate c0163
  parents      c0117
  made by      mutate: reweigh all
  seed         1
  models       smollm2
  searched on  ruler:niah_multikey_1, ruler:niah_multivalue, ruler:niah_single_1,
               ruler:niah_single_2, ruler:niah_single_3 at 1024 tokens
  fitness      0.9523 recovered likelihood over 20 items
"""

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from cachecraft.policy.features import Features


def protect(f: Features, *, sinks: int = 0, recent: int = 0) -> tuple[int, int]:
    """The first entries, which take up attention that goes nowhere, and the most recent ones."""
    return sinks, recent


def _standardised(signal: Tensor) -> Tensor:
    """(G, T): zero mean and unit deviation in each head."""
    centred = signal - signal.mean(dim=-1, keepdim=True)
    return centred / centred.std(dim=-1, keepdim=True, correction=0).clamp(min=1e-6)


def _logged(signal: Tensor) -> Tensor:
    """(G, T): logarithm of what is not negative."""
    return signal.clamp(min=1e-9).log()


def _distance(x: Tensor) -> Tensor:
    """(G, T): one minus the cosine between each vector and the mean direction of its head."""
    unit = normalize(x, dim=-1)
    return 1 - cosine_similarity(unit, unit.mean(dim=1, keepdim=True), dim=-1)


def _ranked(signal: Tensor) -> Tensor:
    """(G, T): each entry's place among its head's entries, over T; the more recent of equals ranks higher."""
    return signal.argsort(dim=-1, stable=True).argsort(dim=-1) / signal.shape[-1]


def _output_norm(f: Features) -> Tensor:
    """(G, T): length of what each value adds to the layer's output, mean over the group's query heads."""
    gram = f.output_projection @ f.output_projection.transpose(1, 2)  # (H, D, D)
    values = f.values.repeat_interleave(f.heads // f.kv_heads, dim=0)  # (H, T, D)
    squared = (values @ gram * values).sum(dim=-1).clamp(min=0)
    return squared.sqrt().view(f.kv_heads, -1, f.tokens).mean(dim=1)


def _unusual(x: Tensor, power: int) -> Tensor:
    """(G, T): mean ``power`` of how many of its standard deviations each channel is away from its mean."""
    centred = x - x.mean(dim=1, keepdim=True)
    away: Tensor = centred / centred.std(dim=1, keepdim=True, correction=0).clamp(min=1e-6)
    return away.abs().pow(power).mean(dim=-1)


def score_tokens(f: Features) -> Tensor:
    """(G, T): higher is kept longer."""
    unusual_plain_key = _unusual(f.keys_unrotated, 3)
    depth = (f.layer + 1) / f.layers
    output_norm = _output_norm(f)
    plain_key_distance = _distance(f.keys_unrotated)
    return (
        0.91 * _standardised(_logged(unusual_plain_key))
        + 1.3 * depth * _ranked(output_norm)
        + 2.0 * _ranked(plain_key_distance)
    )
