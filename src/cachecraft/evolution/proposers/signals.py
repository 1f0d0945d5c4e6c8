"""The building blocks of evolved scorers: short functions from features to (G, T) signals, and between signals.

Programs do not import this file: the mutation proposer copies the functions that a program uses into it, as private
ones, so that a discovered policy is one self-contained file. Each is finite for every context of at least one entry,
zero vectors included, and works at the edges of the text without padding that pulls values down.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, cosine_similarity, max_pool1d, normalize, pad

from cachecraft.policy.features import Features

# Normalisations: (G, T) -> (G, T), each kv head for itself.


def ranked(signal: Tensor) -> Tensor:
    """(G, T): each entry's place among its head's entries, over T; the more recent of equals ranks higher."""
    return signal.argsort(dim=-1, stable=True).argsort(dim=-1) / signal.shape[-1]


def standardised(signal: Tensor) -> Tensor:
    """(G, T): zero mean and unit deviation in each head."""
    centred = signal - signal.mean(dim=-1, keepdim=True)
    return centred / centred.std(dim=-1, keepdim=True, correction=0).clamp(min=1e-6)


def scaled(signal: Tensor) -> Tensor:
    """(G, T): from 0 for each head's smallest to 1 for its largest."""
    low, high = signal.aminmax(dim=-1, keepdim=True)
    return (signal - low) / (high - low).clamp(min=1e-12)


def softened(signal: Tensor) -> Tensor:
    """(G, T): softmax over each head's entries of the standardised signal, times T: few large, most small."""
    return standardised(signal).softmax(dim=-1) * signal.shape[-1]


def logged(signal: Tensor) -> Tensor:
    """(G, T): logarithm of what is not negative."""
    return signal.clamp(min=1e-9).log()


# Pooling along the text, and over kv heads: (G, T) -> (G, T).


def smoothed(signal: Tensor, width: int) -> Tensor:
    """(G, T): mean of the ``width`` entries around each, of fewer at the ends of the text."""
    return avg_pool1d(signal, width, stride=1, padding=width // 2, count_include_pad=False)


def peaked(signal: Tensor, width: int) -> Tensor:
    """(G, T): the largest of the ``width`` entries around each."""
    return max_pool1d(signal, width, stride=1, padding=width // 2)


def shared(signal: Tensor, share: float) -> Tensor:
    """(G, T): each head's own signal mixed with the mean over all kv heads, which gets ``share``."""
    return (1 - share) * signal + share * signal.mean(dim=0, keepdim=True)


# Vectors: (G, T, D) -> (G, T).


def distance(x: Tensor) -> Tensor:
    """(G, T): one minus the cosine between each vector and the mean direction of its head."""
    unit = normalize(x, dim=-1)
    return 1 - cosine_similarity(unit, unit.mean(dim=1, keepdim=True), dim=-1)


def local_distance(x: Tensor, width: int) -> Tensor:
    """(G, T): one minus the cosine between each vector and the mean direction of the ``width`` around it."""
    unit = normalize(x, dim=-1)
    around = avg_pool1d(unit.transpose(1, 2), width, stride=1, padding=width // 2)  # (G, D, T)
    return 1 - cosine_similarity(unit, around.transpose(1, 2), dim=-1)


def novelty(x: Tensor, width: int) -> Tensor:
    """(G, T): one minus the cosine between each vector and the mean direction of the ``width`` before it."""
    unit = normalize(x, dim=-1)
    before = avg_pool1d(pad(unit.transpose(1, 2), (width, 0)), width, stride=1)[..., :-1]  # (G, D, T)
    return 1 - cosine_similarity(unit, before.transpose(1, 2), dim=-1)


def step(x: Tensor) -> Tensor:
    """(G, T): length of the difference between each vector and the one before it."""
    length: Tensor = x.diff(dim=1, prepend=x[:, :1]).norm(dim=-1)
    return length


def unusual(x: Tensor, power: int) -> Tensor:
    """(G, T): mean ``power`` of how many of its standard deviations each channel is away from its mean."""
    centred = x - x.mean(dim=1, keepdim=True)
    away: Tensor = centred / centred.std(dim=1, keepdim=True, correction=0).clamp(min=1e-6)
    return away.abs().pow(power).mean(dim=-1)


def leverage(x: Tensor) -> Tensor:
    """(G, T): how much of its head's span each vector holds alone (ridge leverage)."""
    centred = x - x.mean(dim=1, keepdim=True)
    gram = centred.transpose(1, 2) @ centred  # (G, D, D)
    ridge = gram.diagonal(dim1=1, dim2=2).mean(dim=-1).clamp(min=1e-6)
    inverse = torch.linalg.inv(gram + 0.01 * torch.diag_embed(ridge[:, None].expand(gram.shape[:2])))
    held: Tensor = (centred @ inverse * centred).sum(dim=-1)
    return held


def sharpness(x: Tensor) -> Tensor:
    """(G, T): share of each vector's length that its largest channel holds."""
    share: Tensor = x.abs().amax(dim=-1) / x.norm(dim=-1).clamp(min=1e-12)
    return share


# The layer as a whole: Features -> (G, T).


def expected(f: Features, ahead: int) -> Tensor:
    """(G, T): attention that the mean query would give from the next ``ahead`` positions, mean over the group."""
    places = f.tokens + torch.arange(0, ahead, 8, device=f.keys.device)
    mean = f.rotate(f.queries_unrotated.mean(dim=1, keepdim=True), places).mean(dim=1)  # (H, D)
    logits = f.keys @ mean.view(f.kv_heads, -1, f.head_dim).transpose(1, 2) / f.head_dim**0.5
    attention: Tensor = logits.softmax(dim=1).mean(dim=-1)
    return attention


def output_norm(f: Features) -> Tensor:
    """(G, T): length of what each value adds to the layer's output, mean over the group's query heads."""
    gram = f.output_projection @ f.output_projection.transpose(1, 2)  # (H, D, D)
    values = f.values.repeat_interleave(f.heads // f.kv_heads, dim=0)  # (H, T, D)
    squared = (values @ gram * values).sum(dim=-1).clamp(min=0)
    return squared.sqrt().view(f.kv_heads, -1, f.tokens).mean(dim=1)


def own_match(f: Features) -> Tensor:
    """(G, T): product of each entry's key with its own query, mean over the group."""
    queries = f.queries.view(f.kv_heads, -1, f.tokens, f.head_dim)
    return (queries * f.keys[:, None]).sum(dim=-1).mean(dim=1)


def recency(f: Features) -> Tensor:
    """(G, T): place in the text, from 0 to 1."""
    places = torch.arange(f.tokens, dtype=torch.float32, device=f.positions.device)
    return (places / f.tokens).expand(f.kv_heads, f.tokens)


def marked(mask: Tensor, heads: int) -> Tensor:
    """(T,) bool -> (G, T): 1 where the mask is true."""
    return mask.float().expand(heads, -1)
