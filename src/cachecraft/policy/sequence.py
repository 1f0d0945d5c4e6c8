"""What a policy keeps of a whole sequence: every layer at one budget after another, allocations included.

The layers come from a function that can be called again, since an allocation may need the scores of all layers before
the first choice is made. Nothing is kept from one budget to the next but what ``decide`` shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import Decision, score, select
from cachecraft.policy.division import Divider, divided
from cachecraft.policy.features import LayerFeatures

Layers = Callable[[], Iterable[LayerFeatures]]


def decide_sequence(policy: Policy, layers: Layers, keeps: Sequence[int]) -> list[list[Decision]]:
    """What a policy keeps of all layers, at several budgets.

    Args:
        policy: The policy.
        layers: Gives the sequence's layers in order, each time it is called.
        keeps: Entries kept per kv head on average, one number for each budget.

    Returns:
        For each budget a decision for each layer.

    Raises:
        BudgetError: A budget does not fit a layer.
        InvariantError: The policy broke the contract; the subclass says how.
    """
    if policy.waits:
        return [list(decide_allocated(policy, layers, keep).values()) for keep in keeps]
    count = 0 if policy.allocation is None else sum(1 for _ in layers())
    divider = Divider(policy, count, keeps)
    found: list[list[Decision]] = [[] for _ in keeps]
    for place, layer in enumerate(layers()):
        for decisions, decision in zip(found, divider.decide(place, layer), strict=True):
            decisions.append(decision)
    return found


def decide_allocated(policy: Policy, layers: Layers, keep: int) -> dict[int, Decision]:
    """What a policy that waits for all layers keeps: score them, divide the budget, then select.

    A scorer that read its budget is scored again with its own head's. Arguments and errors as for
    :func:`decide_sequence`; the result has a decision for the index of each layer, in order.
    """
    scored = [score(policy, layer, torch.full((layer.kv_heads,), keep)) for layer in layers()]
    counts = divided(policy, scored, keep)
    decisions = {}
    for own, before, layer in zip(counts, scored, layers(), strict=True):
        again = score(policy, layer, own) if before.one_budget else before
        decisions[layer.layer] = select(policy, again, own, layer)
    return decisions
