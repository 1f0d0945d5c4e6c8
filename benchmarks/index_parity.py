"""Do both sides keep the same entries? Compares selections and says which differences are ties of rounding.

Two float32 implementations of a formula differ in the last bits; where an entry's score lies that close to the
threshold between kept and dropped, either choice is right. Such entries are near ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.traces import Trace, layer_features
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import decide, score

NEAR = 1e-5  # distance to the threshold, relative to the threshold


@dataclass(frozen=True, eq=False)
class Choice:
    """What a policy keeps of a trace at one budget.

    Attributes:
        masks: (L, G, T) bool.
        worth: (L, G, T) float64: the scores, infinite where the policy protects an entry (whatever the budget).
    """

    masks: Tensor
    worth: Tensor


@dataclass(frozen=True)
class Parity:
    """Counts over (layer, head, budget, sample); adds up.

    Attributes:
        selections, identical: Selections compared, and those without any difference.
        entries, near: Entries compared, and near ties among them, the threshold's own entry not counted.
        differing: Entries that only one side keeps.
        differing_near: Those of them that are near ties.
        differing_protected: Those of them that both sides would protect, under a budget smaller than the protection:
            all protected entries are ties to the peer, which adds a constant to their score; also near ties.
    """

    selections: int = 0
    identical: int = 0
    entries: int = 0
    near: int = 0
    differing: int = 0
    differing_near: int = 0
    differing_protected: int = 0

    def __add__(self, other: Parity) -> Parity:
        """Both counts together."""
        return Parity(*[a + b for a, b in zip(self.counts, other.counts, strict=True)])

    @property
    def counts(self) -> tuple[int, ...]:
        """The fields in order."""
        return (
            self.selections,
            self.identical,
            self.entries,
            self.near,
            self.differing,
            self.differing_near,
            self.differing_protected,
        )


def choices(subject: Subject, trace: Trace, policies: Sequence[Policy], keeps: Sequence[int]) -> list[list[Choice]]:
    """What each policy keeps of a trace at each number of entries: a list for each policy, in the order of `keeps`."""
    heads = subject.structure.kv_heads
    budgets = [torch.full((heads,), keep, dtype=torch.int64) for keep in keeps]
    masks: list[list[list[Tensor]]] = [[[] for _ in keeps] for _ in policies]
    worths: list[list[list[Tensor]]] = [[[] for _ in keeps] for _ in policies]
    for features in layer_features(subject.structure, subject.tokenizer, trace):
        for index, policy in enumerate(policies):
            for at, decision in enumerate(decide(policy, features, budgets)):
                scored = score(policy, features, budgets[at])
                worth = scored.scores.double().clone()
                worth[:, : scored.first] = torch.inf
                worth[:, max(0, trace.tokens - scored.last) :] = torch.inf
                masks[index][at].append(decision.mask)
                worths[index][at].append(worth)
    return [
        [Choice(torch.stack(mask), torch.stack(worth)) for mask, worth in zip(of, by, strict=True)]
        for of, by in zip(masks, worths, strict=True)
    ]


def near_ties(choice: Choice) -> Tensor:
    """(L, G, T) bool: entries whose score lies within `NEAR` of the worst kept one's, that one included."""
    worth = choice.worth
    threshold = worth.masked_fill(~choice.masks, torch.inf).amin(dim=-1, keepdim=True)  # (L, G, 1)
    tiny = torch.finfo(torch.float32).tiny
    distance = (worth - threshold).abs() / threshold.abs().clamp(min=tiny)
    # Infinite on both sides: the budget is smaller than the protection, and all of it is one tie.
    return torch.where(threshold.isinf(), worth.isinf(), distance <= NEAR)


def compare(choice: Choice, peer: Tensor) -> Parity:
    """Compare one choice with the peer's kept indices, (L, G, kept) int64.

    Raises:
        SystemExit: The peer kept another number of entries, so that nothing can be compared.
    """
    ours = choice.masks
    theirs = torch.zeros_like(ours).scatter_(-1, peer, True)
    if bool((theirs.sum(dim=-1) != ours.sum(dim=-1)).any()):
        raise SystemExit(f"The peer keeps {peer.shape[-1]} entries where ours keeps {int(ours[0, 0].sum())}.")
    near = near_ties(choice)
    differing = ours != theirs
    below = choice.worth.masked_fill(~ours, torch.inf).amin(dim=-1, keepdim=True).isinf()
    rows = ours.shape[0] * ours.shape[1]
    return Parity(
        selections=rows,
        identical=rows - int(differing.any(dim=-1).sum()),
        entries=ours.numel(),
        near=int(near.sum()) - rows,
        differing=int(differing.sum()),
        differing_near=int((differing & near).sum()),
        differing_protected=int((differing & near & below).sum()),
    )
