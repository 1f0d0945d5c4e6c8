"""SnapKV: attention of the last queries, smoothed over neighbours (Li et al., 2024, arXiv 2404.14469)."""

import torch
from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import neighbour_mean


def protect(f: Features, *, window: int = 64) -> tuple[int, int]:
    """The window whose queries judge the rest."""
    return 0, window


def score_tokens(f: Features, *, window: int = 64, kernel: int = 5) -> Tensor:
    """Mean attention of the window's queries, averaged over ``kernel`` neighbours (zeros outside) and heads.

    The window itself gets its head's highest score. A context no longer than the window is all window, and
    then the most recent entries stay (ours).
    """
    if f.tokens <= window:
        return torch.zeros(f.kv_heads, f.tokens, device=f.positions.device)
    received = f.window_attention(window)[..., : f.tokens - window].mean(dim=(1, 2))  # (G, T - w)
    smooth = neighbour_mean(received, kernel, zeros_outside=True)
    return torch.cat((smooth, smooth.amax(dim=-1, keepdim=True).expand(-1, window)), dim=-1)
