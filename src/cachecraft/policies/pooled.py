"""Pooled: another policy's scores, smoothed along the text (ours); wraps a scorer.

``pooled(keydiff):kernel=5``. What is relevant comes in runs of tokens, while most scores judge each by itself; SnapKV
and others pool for that reason, and this does it for any policy. The base decides what is protected.
"""

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from cachecraft.policy.contract import Policy
from cachecraft.policy.features import Features
from cachecraft.policy.signals import neighbour_mean


def score_tokens(f: Features, base: Policy, *, kernel: int = 5, highest: bool = False) -> Tensor:
    """Mean, or with ``highest`` the maximum, over ``kernel`` neighbouring entries, as far as there are any."""
    scores = base.score(f).float()
    if not highest:
        return neighbour_mean(scores, kernel, zeros_outside=False)
    sides = ((kernel - 1) // 2, kernel // 2)
    return max_pool1d(pad(scores, sides, value=-torch.inf), kernel, stride=1)
