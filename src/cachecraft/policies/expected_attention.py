"""Expected attention: what the queries to come will probably attend to (Devoto et al., 2025, arXiv 2510.00636).

The queries of the context, before the rotation, are taken for a normal distribution, which is rotated to the mean of
the next 512 positions; the expected attention of such a query on an entry has a closed form. The paper's leaderboard
entry divides its budget over the heads and adds ``epsilon=0.01``. ``value_norm=false`` leaves the values out, for
wrappers that weigh them themselves. A context of sinks alone keeps the most recent of them (ours).
"""

import torch
from torch import Tensor

from cachecraft.policy.features import Features


def protect(f: Features, *, sinks: int = 4) -> tuple[int, int]:
    """The attention sinks, whose queries and keys are outliers."""
    return sinks, 0


def score_tokens(
    f: Features, *, sinks: int = 4, future: int = 512, epsilon: float = 0.0, value_norm: bool = True
) -> Tensor:
    """Softmax of the expected logits over the entries after the sinks, group mean, times the value's norm.

    The sinks get their layer's highest score.
    """
    if f.tokens <= sinks:
        return torch.zeros(f.kv_heads, f.tokens, device=f.positions.device)
    queries = f.queries_unrotated[:, sinks:]  # (H, n, D)
    rotation = f.mean_rotation(future)
    mean = queries.mean(dim=1, keepdim=True)
    centred = queries - mean
    covariance = centred.transpose(1, 2) @ centred / queries.shape[1]
    group = f.heads // f.kv_heads
    mean = (mean @ rotation.t()).view(f.kv_heads, group, -1)
    covariance = (rotation @ covariance @ rotation.t()).view(f.kv_heads, group, *rotation.shape)
    keys = f.keys[:, sinks:]  # (G, n, D)
    expected = torch.zeros(keys.shape[:2], device=keys.device)
    for member in range(group):
        towards = (keys @ mean[:, member, :, None]).squeeze(-1)
        spread = ((keys @ covariance[:, member]) * keys).sum(dim=-1)
        expected += (towards * f.scaling + spread * (f.scaling**2 / 2)).softmax(dim=-1) / group
    if value_norm:
        expected = (expected + epsilon) * torch.linalg.vector_norm(f.values[:, sinks:], dim=-1)
    return torch.cat((expected.max().expand(f.kv_heads, sinks), expected), dim=-1)
