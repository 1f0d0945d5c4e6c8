"""Heads of equal length share a buffer, so that a cache of unequal ones is stored without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Block:
    """The heads of one length: which they are among all rows' heads, and their entries.

    Attributes:
        heads: (n,) int64 places among the B * G heads, or None for all of them in order.
        keys: (n, capacity, D).
        values: (n, capacity, D).
        filled: How many of the slots are in use, from the left.
    """

    heads: Tensor | None
    keys: Tensor
    values: Tensor
    filled: int

    def in_use(self, window: int | None, new: int = 0) -> slice:
        """The slots that `new` tokens after the first ones of a sliding window may see; all of them without one."""
        return slice(0 if window is None else max(0, self.filled - new - window + 1), self.filled)

    def with_room(self, new: int, window: int | None) -> Block:
        """A copy, without what a sliding window hides, that `new` more tokens fit into."""
        used = self.in_use(window)
        keys, values = _grown(self.keys[:, used], new), _grown(self.values[:, used], new)
        return Block(self.heads, keys, values, used.stop - used.start)


def _grown(used: Tensor, new: int) -> Tensor:
    larger = used.new_empty(used.shape[0], used.shape[1] + new, used.shape[2])
    larger[:, : used.shape[1]] = used
    return larger


def blocks_of(keys: Tensor, values: Tensor, counts: Sequence[int]) -> list[Block]:
    """Blocks of the heads of each length: keys and values (S, D), heads one after another, and each head's count."""
    if len(set(counts)) == 1:
        shape = (len(counts), counts[0])
        return [Block(None, keys.view(*shape, keys.shape[-1]), values.view(*shape, values.shape[-1]), counts[0])]
    by_length: dict[int, list[int]] = {}
    for head, count in enumerate(counts):
        by_length.setdefault(count, []).append(head)
    each_key, each_value = keys.split(list(counts)), values.split(list(counts))
    return [
        Block(
            torch.tensor(heads, device=keys.device),
            torch.stack([each_key[head] for head in heads]),
            torch.stack([each_value[head] for head in heads]),
            count,
        )
        for count, heads in by_length.items()
    ]
