"""Which candidates of a context are attended together: those whose kept entries overlap.

Attending a group costs its tokens times the entries of its union. One group of all has a union of nearly the whole
context; a group for each reads shared entries again and again. A greedy search lies between: it begins with a group
for each candidate and joins the two that save most, for as long as that saves anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

COPIES = 3  # contexts' worth of entries that the groups hold at most
_READ = 3  # tokens whose arithmetic costs what reading an entry costs
CALL = 1000  # entries times tokens that cost what one more call costs
_LAYERS, _ENTRIES = 4, 1024  # looked at, at most: the costs of groups are estimates


def groups(selections: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Divide candidates into groups that are cheap to attend.

    Args:
        selections: For each candidate and layer the kept entries, (G, T) bool; at least one candidate. Layers with
            fewer entries, those of sliding windows, are not looked at.

    Returns:
        Indices of candidates, each in one group, in order within it. The groups' unions are together at most
        `COPIES` times the context, as far as a sample of it tells.
    """
    unions, scale = _sampled(selections)
    members = [[index] for index in range(len(selections))]
    sizes = torch.ones(len(members))
    alone = _entries(unions) * scale
    costs = _costs(sizes, alone)
    joined = torch.stack([_entries(unions | union) for union in unions]) * scale  # (C, C) entries of two groups' union
    limit = COPIES * max(kept.shape[-1] for kept in selections[0])
    while len(members) > 1:
        gains = costs.unsqueeze(0) + costs.unsqueeze(1) - _costs(sizes.unsqueeze(0) + sizes.unsqueeze(1), joined)
        gains.fill_diagonal_(float("-inf"))
        best = int(gains.argmax())
        one, other = sorted(divmod(best, len(members)))
        if gains[one, other] <= 0 and float(alone.sum()) <= limit:
            break
        members[one] = sorted(members[one] + members.pop(other))
        unions[one] |= unions[other]
        sizes[one] += sizes[other]
        alone[one] = joined[one, other]
        rest = torch.arange(len(sizes)) != other
        unions, sizes, alone, joined = unions[rest], sizes[rest], alone[rest], joined[rest][:, rest]
        joined[one] = joined[:, one] = _entries(unions | unions[one]) * scale
        costs = _costs(sizes, alone)
    return members


def _sampled(selections: Sequence[Sequence[Tensor]]) -> tuple[Tensor, float]:
    """Every candidate's kept entries in some layers at evenly spaced places, (C, l, G, t), and what each stands for."""
    entries = max(kept.shape[-1] for kept in selections[0])
    whole = [index for index, kept in enumerate(selections[0]) if kept.shape[-1] == entries]  # not a sliding window's
    layers, step = whole[:: -(-len(whole) // _LAYERS)], -(-entries // _ENTRIES) if entries else 1
    return torch.stack([torch.stack([kept[i][:, ::step].cpu() for i in layers]) for kept in selections]), float(step)


def _entries(unions: Tensor) -> Tensor:
    """What each union, (C, l, G, t), holds for the head that holds most, as the mean of its layers: (C,)."""
    return unions.sum(dim=-1).amax(dim=-1).float().mean(dim=-1)


def _costs(sizes: Tensor, entries: Tensor) -> Tensor:
    return (sizes + _READ) * entries + CALL
