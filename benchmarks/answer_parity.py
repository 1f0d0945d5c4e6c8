"""Are both sides' greedy answers the same, and where not, how close was the choice at the first other token?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.evaluation.traces import Trace
from cachecraft.runtime import compat
from cachecraft.runtime.attention import attending
from cachecraft.runtime.gather import compressed_cache
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True)
class Flip:
    """Where two answers part.

    Attributes:
        token: Index of the first new token that differs.
        margin: Our logit of the best token there less that of the second best.
        same_entries: Whether both sides kept the same entries, so that rounding alone made the difference.
    """

    token: int
    margin: float
    same_entries: bool


def until_stop(ids: Iterable[int], stops: Iterable[int]) -> list[int]:
    """The tokens before the first stop token; kvpress does not look for one in its first new token and goes on."""
    ends = set(stops)
    kept: list[int] = []
    for token in ids:
        if token in ends:
            break
        kept.append(token)
    return kept


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first token that differs, an end being a token too; None for equal answers."""
    if list(ours) == list(theirs):
        return None
    shorter = min(len(ours), len(theirs))
    return next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)


def margin_after(
    structure: ModelStructure, trace: Trace, masks: Tensor, follow: Sequence[int], answer: Sequence[int]
) -> float:
    """Best logit less second best after `follow` and the beginning `answer`, over the entries in masks (L, G, T)."""
    layers = [(layer.keys, layer.values) for layer in trace.layers]
    cache = compressed_cache(layers, [mask.unsqueeze(0) for mask in masks], seen=trace.tokens)
    ids = torch.tensor([[*follow, *answer]])
    positions = trace.tokens + torch.arange(ids.shape[1]).unsqueeze(0)
    with torch.no_grad(), attending(structure.model, cache=cache):
        hidden = compat.hidden_states(structure.model, ids, positions, cache)
        best = compat.logits(structure.model, hidden[0, -1]).topk(2).values
    return float(best[0] - best[1])
