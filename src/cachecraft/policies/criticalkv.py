"""CriticalKV: high scores first, then scores times the projected value (Feng et al., 2025, arXiv 2502.03805).

Wraps a scorer without negative scores: ``criticalkv(snapkv)``. For a base that weighs the values itself, leave that
out: ``criticalkv(expected_attention:value_norm=false)``. The base decides what is protected.
"""

import torch
from torch import Tensor

from cachecraft.policy.contract import Policy
from cachecraft.policy.features import Features
from cachecraft.policy.selectors import tokens
from cachecraft.policy.signals import require_non_negative


def score_tokens(f: Features, base: Policy, *, epsilon: float = 1e-4, first_stage: float = 0.5) -> Tensor:
    """The base's score plus ``epsilon``, times the mean L1 norm of the value behind the group's output matrices.

    The best ``first_stage`` of the budget by the base's score, at least one entry, lie above all others.
    """
    scores = require_non_negative(base.score(f).float(), base.name, "criticalkv")
    weighted = (scores + epsilon) * f.projected_values().mean(dim=1)
    first = torch.clamp((f.keep * first_stage).long(), min=1)
    return torch.where(tokens(scores, first), 2 * weighted.max() + 1, weighted)
