"""Parts that several policies' scores are made of: pure functions of tensors, each with its edge cases defined.

Nothing here knows a model, a budget or a policy's name.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from cachecraft.errors import FeatureError, PolicyError

_TINY = 1e-12  # keeps a division by the norm of a zero vector finite


def cosine_to_mean(vectors: Tensor) -> Tensor:
    """Cosine between each vector and the mean of its head's unit vectors: (G, T, D) -> (G, T); 0 for zero vectors."""
    norms = torch.linalg.vector_norm(vectors, dim=-1).clamp(min=_TINY)  # (G, T)
    mean = norms.reciprocal()[:, None, :] @ vectors / vectors.shape[1]  # (G, 1, D)
    length = torch.linalg.vector_norm(mean, dim=-1).clamp(min=_TINY)  # (G, 1)
    cosine: Tensor = (vectors @ mean.transpose(1, 2)).squeeze(-1) / (norms * length)
    return cosine


def value_key_ratio(keys: Tensor, values: Tensor) -> Tensor:
    """Norm of the value over norm of the key: two (G, T, D) -> (G, T); a zero key gives no infinity."""
    ratio: Tensor = torch.linalg.vector_norm(values, dim=-1) / torch.linalg.vector_norm(keys, dim=-1).clamp(min=_TINY)
    return ratio


def neighbour_mean(scores: Tensor, kernel: int, *, zeros_outside: bool) -> Tensor:
    """Mean over ``kernel`` neighbouring entries, the odd one out on the right: (G, T) -> (G, T).

    Args:
        scores: (G, T).
        kernel: Entries averaged, at least 1; it may exceed T.
        zeros_outside: Count entries beyond the ends as zeros, as the published poolings do; otherwise only entries
            that exist are averaged, so that an end is neither raised nor lowered.
    """
    sides = ((at_least_one("kernel", kernel) - 1) // 2, kernel // 2)
    mean = avg_pool1d(pad(scores, sides), kernel, stride=1)
    if zeros_outside or kernel == 1:
        return mean
    share = avg_pool1d(pad(torch.ones_like(scores[:1]), sides), kernel, stride=1)
    return mean / share


def rank_shares(scores: Tensor) -> Tensor:
    """Each entry's place among its row's, from 0 for the lowest, over their number; of equals the later is higher.

    (..., T) -> (..., T) float32.
    """
    order = scores.sort(dim=-1, stable=True).indices
    places = torch.arange(scores.shape[-1], dtype=torch.float32, device=scores.device).expand(scores.shape)
    return torch.empty_like(places).scatter_(-1, order, places) / scores.shape[-1]


def z_scores(scores: Tensor) -> Tensor:
    """Less their mean over the whole layer, over their unbiased standard deviation (at least 1e-6); 0 for one score."""
    if scores.numel() < 2:
        return torch.zeros_like(scores)
    return (scores - scores.mean()) / scores.std().clamp(min=1e-6)


def attended_values(received: Tensor, values: Tensor, kernel: int) -> Tensor:
    """Attention times the norm of the value, smoothed: (G, H/G, T) and (G, T, D) -> (G, T); group mean."""
    weighted = received.mean(dim=1) * torch.linalg.vector_norm(values, dim=-1)
    return neighbour_mean(weighted, kernel, zeros_outside=True)


def sketched_leverage(rows: Tensor, sketch: int, ridge: float, generator: torch.Generator) -> Tensor:
    """Ridge leverage of each row of a centred matrix, projected at random: (G, T, D) -> (G, T), each from 0 to 1.

    The diagonal of X (XᵀX + ridge·I)⁻¹ Xᵀ for the projected X, by the eigenvectors of XᵀX in float64: that needs no
    T x T matrix and, unlike a Cholesky factor, exists for any X, also for fewer rows than columns.

    Args:
        rows: (G, T, D).
        sketch: Columns K of the projection, which is normal with a variance of 1/K.
        ridge: Added to the diagonal, above 0.
        generator: Draws the projection, one for each head.
    """
    shape = (rows.shape[0], rows.shape[-1], at_least_one("sketch", sketch))
    projection = torch.randn(shape, generator=generator).to(rows.device) / sketch**0.5
    exact = rows.double()
    x = (exact - exact.mean(dim=1, keepdim=True)) @ projection.double()  # (G, T, K)
    values, vectors = torch.linalg.eigh(x.transpose(1, 2) @ x)  # (G, K), (G, K, K)
    whitened: Tensor = x @ (vectors / (values.clamp(min=0) + ridge).sqrt()[:, None, :])
    return whitened.square().sum(dim=-1).float()


def main_direction(rows: Tensor) -> Tensor:
    """First right singular vector of each head's rows, signed so that their mean lies on its positive side.

    (G, T, D) -> (G, D), of length 1.
    """
    gram = (rows.transpose(1, 2) @ rows).double()
    direction = torch.linalg.eigh(gram).eigenvectors[..., -1].float()  # eigenvalues ascend
    side = (rows.mean(dim=1) * direction).sum(dim=-1, keepdim=True)
    return torch.where(side < 0, -direction, direction)


def require_non_negative(scores: Tensor, base: str, wrapper: str) -> Tensor:
    """The scores; PolicyError where one is negative, since a wrapper that multiplies them would turn their order."""
    lowest = float(scores.min())
    if lowest < 0:
        raise PolicyError(
            f"Policy {wrapper} multiplies the scores of its base, but {base} gave {lowest:.3g}; wrap a policy whose "
            "scores are never negative, such as snapkv, observed_attention or expected_attention."
        )
    return scores


def at_least_one(name: str, value: int) -> int:
    """The value; FeatureError if it is below 1. For sizes, such as a policy's window."""
    if value < 1:
        raise FeatureError(f"A {name} of {value} means nothing; give at least 1.")
    return int(value)
