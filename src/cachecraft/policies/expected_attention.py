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
    group, rotation = f.heads // f.kv_heads, f.mean_rotation(future)
    keys = f.keys[:, sinks:]  # (G, n, D)
    expected = torch.zeros(keys.shape[:2], device=keys.device)
    for head, queries in enumerate(f.queries_unrotated[:, sinks:]):  # one at a time: little memory
        mean = queries.mean(dim=0)
        centred = queries - mean
        covariance = rotation @ (centred.t() @ centred / queries.shape[0]) @ rotation.t()
        key = keys[head // group]
        logits = key @ (rotation @ mean) * f.scaling + ((key @ covariance) * key).sum(dim=-1) * (f.scaling**2 / 2)
        expected[head // group] += logits.softmax(dim=-1) / group
    if value_norm:
        expected = (expected + epsilon) * torch.linalg.vector_norm(f.values[:, sinks:], dim=-1)
    return torch.cat((expected.max().expand(f.kv_heads, sinks), expected), dim=-1)
