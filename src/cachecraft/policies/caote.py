"""CAOTE: what leaving an entry out would change in the output (Goel et al., 2025, arXiv 2504.14051); wraps a scorer.

``caote(snapkv)``: the base's scores, normalised, stand for the attention weights. The base decides what is protected.
"""

import torch
from torch import Tensor

from cachecraft.policy.contract import Policy
from cachecraft.policy.features import Features
from cachecraft.policy.signals import require_non_negative

_MOST = 1 - 1e-6  # of a weight that is divided by its complement


def score_tokens(f: Features, base: Policy) -> Tensor:
    """Distance between the outputs with and without the entry, for weights in proportion to the base's scores."""
    scores = require_non_negative(base.score(f).float(), base.name, "caote")
    weights = scores / scores.sum(dim=-1, keepdim=True).clamp(min=1e-30)  # (G, T)
    values = f.values
    output = weights[:, None, :] @ values  # (G, 1, D)
    distance: Tensor = torch.linalg.vector_norm(values - output, dim=-1)
    return weights / (1 - weights.clamp(max=_MOST)) * distance
