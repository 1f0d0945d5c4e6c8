"""Observed attention: the mean attention that an entry received from the queries that could see it."""

from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Mean over the queries that see the entry, then over the group."""
    return f.attention_received().mean(dim=1)
