"""Do both sides keep the same entries? Compares selections and says which differences are ties of rounding.

Two float32 implementations of a formula differ in the last bits; where an entry's score lies that close to the
threshold between kept and dropped, either choice is right. Such entries are near ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from cachecraft.errors import CacheCraftError
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
        differing, differing_near: Entries that only one side keeps, and near ties among them.
        cut, cut_differing: Selections whose budget is smaller than what the policy protects, which are in none of the
            counts above, and the entries that only one side keeps of them. To the peer, which raises the scores of the
            protected to one value, they are ties, and it keeps an arbitrary part.
    """

    selections: int = 0
    identical: int = 0
    entries: int = 0
    near: int = 0
    differing: int = 0
    differing_near: int = 0
    cut: int = 0
    cut_differing: int = 0

    def __add__(self, other: Parity) -> Parity:
        """Both counts together."""
        return Parity(*[a + b for a, b in zip(astuple(self), astuple(other), strict=True)])


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


def compare(choice: Choice, peer: Tensor, *, scale: float = 0.0) -> Parity:
    """Compare one choice with the entries that the peer keeps.

    Args:
        choice: Ours.
        peer: (L, G, T) bool.
        scale: Near ties are relative to the threshold, or to this where the threshold is smaller: for standardised
            scores, whose threshold may be 0.

    Raises:
        CacheCraftError: The peer kept another number of entries, so that nothing can be compared.
    """
    ours, theirs = choice.masks.flatten(0, 1), peer.flatten(0, 1)  # (L * G, T)
    worth = choice.worth.flatten(0, 1)
    if bool((theirs.sum(dim=-1) != ours.sum(dim=-1)).any()):
        raise CacheCraftError(f"The peer keeps {int(theirs[0].sum())} entries where ours keeps {int(ours[0].sum())}.")
    threshold = worth.masked_fill(~ours, torch.inf).amin(dim=-1, keepdim=True)  # the worst entry kept
    cut = threshold.isinf().squeeze(-1)  # only protected entries are kept
    differing = ours != theirs
    cut_differing = int(differing[cut].sum())
    ours, worth, threshold, differing = ours[~cut], worth[~cut], threshold[~cut], differing[~cut]
    least = max(scale, torch.finfo(torch.float32).tiny)
    near = (worth - threshold).abs() <= NEAR * threshold.abs().clamp(min=least)
    return Parity(
        selections=len(ours),
        identical=len(ours) - int(differing.any(dim=-1).sum()),
        entries=ours.numel(),
        near=int(near.sum()) - len(ours),
        differing=int(differing.sum()),
        differing_near=int((differing & near).sum()),
        cut=int(cut.sum()),
        cut_differing=cut_differing,
    )
