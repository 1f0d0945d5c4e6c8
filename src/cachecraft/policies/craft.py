"""Craft: unusual keys that point away from the others, with weighty values in deep layers (ours, found by a search).

Signals of keys and values alone, none of attention: it costs one pass over the entries and does not depend on who
asks. It keeps what has, in its head,

* unusual channels in its key before rotation, some of them many standard deviations from their mean: what a text says
  once, while what it repeats lies near the mean;
* a long value, which counts the more the deeper the layer;
* a key before rotation that points away from the mean direction (KeyDiff's rule, arXiv 2504.15364, there after it);

and each entry shares with its two neighbours, since what is said once takes more than one token. docs/craft.md tells
which search found it, what simplifying it cost, and how it fares.
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import cosine_to_mean, neighbour_mean, rank_shares


def score_tokens(
    f: Features, *, power: int = 4, output: float = 1.5, direction: float = 1.0, kernel: int = 3
) -> Tensor:
    """How unusual the key is, in its head's standard deviations, plus two weighted ranks; mean over ``kernel``."""
    depth = (f.layer + 1) / f.layers
    unusual = _standardised(_unusual(f.keys_unrotated, power).clamp(min=1e-9).log())
    weight = rank_shares(torch.linalg.vector_norm(f.values, dim=-1))
    apart = rank_shares(-cosine_to_mean(f.keys_unrotated))
    return neighbour_mean(unusual + output * depth * weight + direction * apart, kernel, zeros_outside=False)


def _unusual(vectors: Tensor, power: int) -> Tensor:
    """(G, T, D) -> (G, T): mean ``power`` of each channel's distance from its mean, in its standard deviations."""
    centred = vectors - vectors.mean(dim=1, keepdim=True)
    distances: Tensor = centred / centred.std(dim=1, keepdim=True, correction=0).clamp(min=1e-6)
    return distances.abs().pow(power).mean(dim=-1)


def _standardised(scores: Tensor) -> Tensor:
    """(G, T): mean 0 and deviation 1 in each head."""
    centred = scores - scores.mean(dim=-1, keepdim=True)
    return centred / centred.std(dim=-1, keepdim=True, correction=0).clamp(min=1e-6)
