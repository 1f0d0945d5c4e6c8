"""Attention of many candidates' new tokens over the one context that all of them are selections from.

The context is stored once. A line with many new tokens (a prompt) has its own entries gathered for the length of one
call. Lines with a few new tokens each (decoding) are attended in groups over the union of what a group keeps, every
token masked to its own line's entries: reading each line's entries apart would cost more memory traffic than the masked
products cost arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.runtime import compat
from cachecraft.runtime.gather import counts_of, slots_of, take
from cachecraft.runtime.grouping import groups

NEARLY_ALL = 0.85  # a union of this share of the context is not worth a copy


@dataclass(frozen=True, eq=False)
class SharedContext:
    """One context and what each of its candidates keeps.

    Attributes:
        layers: For each layer its dense keys and values, (G, T, D) each; of a sliding window, what it shows to the next
            token.
        selections: For each candidate and layer the kept entries, (G, T) bool on the CPU: what is kept is worked out
            there, and only the places of entries and finished masks go to where keys and values are.
    """

    layers: Sequence[tuple[Tensor, Tensor]]
    selections: Sequence[Sequence[Tensor]]

    def attend_alone(
        self, layer: int, candidate: int, queries: Tensor, scale: float, softcap: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """One candidate's queries over its entries.

        Args:
            layer: Index of the layer.
            candidate: Index of the candidate.
            queries: (n, G, S, D).
            scale: Factor of the dot products.
            softcap: Limit of the scaled logits.

        Returns:
            (n, G, S, D) output and (n, G, S) float32 log-sum-exp.
        """
        keys, values = self.layers[layer]
        mask = self.selections[candidate][layer].unsqueeze(0)
        counts, largest = counts_of(mask)
        largest = max(largest, 1)
        slots = slots_of(mask, counts, largest, 0).to(keys.device)
        unseen = None
        if not bool((counts == largest).all()):
            unseen = _additive(torch.arange(largest) < counts.unsqueeze(-1), keys).unsqueeze(2)  # (1, G, 1, largest)
        return _attended(queries, take(keys, slots), take(values, slots), scale, unseen, softcap)

    def attend_window(
        self, layer: int, window: int, slots: Tensor, queries: Tensor, scale: float, softcap: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries of any candidates over what a sliding window, of which nothing is evicted, still shows to them.

        Args:
            layer: Index of the layer.
            window: Entries that a token sees, itself included.
            slots: (n,) int64, how many tokens after the context's last one each query's own comes, 0 for the next one.
            queries: (n, G, S, D).
            scale: Factor of the dot products.
            softcap: Limit of the scaled logits.

        Returns:
            As `attend_alone`; the weight of a token that sees none of the context is low enough to count for nothing.
        """
        keys, values = self.layers[layer]
        entries = keys.shape[1]
        if not entries:  # a window of one token
            nothing = queries.new_zeros(*queries.shape[:-1], values.shape[-1])
            return nothing, queries.new_full(queries.shape[:-1], float("-inf"), dtype=torch.float32)
        share = queries.shape[2]
        seen = torch.arange(entries, device=slots.device) > (slots + entries - window).unsqueeze(-1)  # (n, entries)
        unseen = None if bool(seen.all()) else _additive(seen.repeat(share, 1), keys).view(1, 1, -1, entries)
        return _attended(queries, keys.unsqueeze(0), values.unsqueeze(0), scale, unseen, softcap)


class Together:
    """What some candidates of a context keep together, and which of it each may see."""

    @classmethod
    def of(cls, context: SharedContext, candidates: Sequence[int]) -> list[Together]:
        """Candidates in groups, each of which keeps much the same."""
        found = groups([context.selections[candidate] for candidate in candidates])
        return [cls(context, [candidates[index] for index in group]) for group in found]

    def __init__(self, context: SharedContext, candidates: Sequence[int]) -> None:
        """Gather the union of the candidates' entries, layer by layer; the context itself where that is nearly all."""
        self.context = context
        self.places = {candidate: place for place, candidate in enumerate(candidates)}
        self._layers: list[tuple[Tensor, Tensor, Tensor]] = []
        for index, (keys, values) in enumerate(context.layers):
            masks = torch.stack([context.selections[candidate][index] for candidate in candidates])  # (C, G, T)
            union = masks.any(dim=0, keepdim=True)
            counts, largest = counts_of(union)
            if largest < NEARLY_ALL * keys.shape[1]:
                largest = max(largest, 1)
                slots = slots_of(union, counts, largest, 0)
                masks = masks.gather(-1, slots.expand_as(masks[..., :largest]))
                masks &= torch.arange(largest) < counts.unsqueeze(-1)
                keys, values = (take(dense, slots.to(dense.device))[0] for dense in (keys, values))
            self._layers.append((keys, values, _additive(masks.transpose(0, 1), keys)))

    @property
    def entries(self) -> int:
        """The most entries that any layer holds for a head."""
        return max(int(keys.shape[1]) for keys, _, _ in self._layers)

    def attend(
        self, layer: int, places: Tensor, queries: Tensor, scale: float, softcap: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of several candidates' queries.

        Args:
            layer: Index of the layer.
            places: (m,) int64, for each query its candidate's place.
            queries: (m, G, S, D).
            scale: Factor of the dot products.
            softcap: Limit of the scaled logits.

        Returns:
            (m, G, S, D) output and (m, G, S) float32 log-sum-exp.
        """
        keys, values, masks = self._layers[layer]
        new, heads, share, _ = queries.shape
        mask = masks.index_select(1, places).unsqueeze(1).expand(-1, share, -1, -1)  # (G, S, m, entries)
        mask = mask.reshape(1, heads, share * new, -1)
        return _attended(queries, keys.unsqueeze(0), values.unsqueeze(0), scale, mask, softcap)


def _attended(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Queries (n, G, S, D) over (1, G, E, D), each head's n queries one after another in the mask's rows."""
    new, heads, share, width = queries.shape
    folded = queries.permute(1, 2, 0, 3).reshape(1, heads, share * new, width)
    output, logsumexp = compat.attention_with_lse(folded, keys, values, scale, mask, softcap=softcap)
    return _unfold(output, new, share), _unfold(logsumexp.unsqueeze(-1), new, share).squeeze(-1)


def _unfold(folded: Tensor, new: int, share: int) -> Tensor:
    """(1, G, S * n, D) as (n, G, S, D)."""
    return folded.reshape(folded.shape[1], share, new, -1).permute(2, 0, 1, 3)


def _additive(seen: Tensor, like: Tensor) -> Tensor:
    """0 where seen, else the lowest finite number: a head that keeps nothing then has a weight of 0, and no NaN."""
    lowest = torch.finfo(like.dtype).min
    hidden = ~seen.to(like.device)
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, lowest)
