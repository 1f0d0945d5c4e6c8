"""One ranking of a layer's entries that serves every budget, where a policy's choices are nested."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import Scored, score
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.protection import clip_protection
from cachecraft.policy.selectors import Selector


@dataclass(frozen=True, eq=False)
class Ranking:
    """A layer's entries in order, and the scores behind it.

    Attributes:
        ranks: (G, T) int64; at every budget the entries below it stay.
        scored: The scores, which hold for every budget.
    """

    ranks: Tensor
    scored: Scored


def nested_ranks(policy: Policy, layer: LayerFeatures) -> Ranking | None:
    """Places of a layer's entries such that, at every budget, those below it are what the policy keeps.

    Args:
        policy: The policy.
        layer: The layer.

    Returns:
        The ranking, or None where a larger budget may drop what a smaller one keeps: the policy has a selector of
        its own, or its scores or its protection read the budget.

    Raises:
        InvariantError: The policy broke the contract.
    """
    if policy.custom_selector:
        return None
    tokens = layer.tokens
    keep = torch.full((layer.kv_heads,), tokens, dtype=torch.int64, device=layer.device)
    scored = score(policy, layer, keep)
    if scored.one_budget:
        return None
    first, last = min(scored.first, tokens), min(scored.last, tokens - min(scored.first, tokens))
    protected = clip_protection(first, last, keep, tokens) if first or last else None
    ranks = (policy.selector or Selector("tokens")).ranks(scored.scores, protected)
    if protected is not None:
        # Below what is protected, the first entries go before the last ones and of these the most recent lead.
        ranks[:, :first] = torch.arange(first, device=ranks.device)
        ranks[:, tokens - last :] = torch.arange(first + last - 1, first - 1, -1, device=ranks.device)
    return Ranking(ranks, scored)
