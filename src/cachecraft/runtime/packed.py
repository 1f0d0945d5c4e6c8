"""Many compressed caches of one context, run together: what lets a grid of candidates cost little more than one.

Rows are candidates. They hold different numbers of entries and, once answers are being generated, have different
numbers of new tokens. The new tokens of all rows are packed into one sequence, so that the linear layers (nearly all
of the arithmetic) see no padding; only attention unpacks them, one group of rows of like length at a time.
Rows are never shipped to a user in this form: see `cachecraft.runtime.cache` for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from cachecraft.errors import ModelError
from cachecraft.runtime.gather import counts_of, slots_of, take


@dataclass(frozen=True)
class _Pack:
    """Where the packed tokens of one group belong during one forward pass.

    Attributes:
        first, last: The group's slice of the packed sequence.
        rows, offsets: (m,) int64, row of the group and place among the row's new tokens, for each packed token.
        new: The most new tokens of any row, N.
        padded: (C, N) int64 index into the group's m tokens, repeating a token as padding; None when all rows bring
            N tokens and the packed order is already (C, N).
    """

    first: int
    last: int
    rows: Tensor
    offsets: Tensor
    new: int
    padded: Tensor | None


class _Group:
    """Rows of like length: for each layer a buffer (C, G, capacity, D) of keys and one of values."""

    def __init__(
        self, layers: Sequence[tuple[Tensor, Tensor]], masks: Sequence[Tensor], rows: Sequence[int], room: int
    ) -> None:
        self.rows = list(rows)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.base: list[Tensor] = []  # entries kept: (C, G), or (1, 1) when all rows and heads agree
        self.grown = torch.zeros(len(self.rows), dtype=torch.int64)  # (C,) new tokens accepted so far
        for (keys, values), mask in zip(layers, masks, strict=True):
            counts, largest = counts_of(mask)
            slots = slots_of(mask, counts, largest, room).to(keys.device)
            self.keys.append(take(keys, slots))
            self.values.append(take(values, slots))
            same = bool((counts == largest).all())
            base = counts[:1, :1] if same else counts
            shared = self.base and self.base[-1].shape == base.shape and bool((self.base[-1] == base).all())
            self.base.append(self.base[-1] if shared else base)
        self.pack: _Pack | None = None
        self._plans: dict[int, tuple[Tensor, Tensor, int]] = {}

    def plan(self, layer: int) -> tuple[Tensor, Tensor, int]:
        """Where new tokens are written and what they see, shared by layers of equal counts.

        Returns:
            (G * m,) int64 slots of the flattened buffer; (C, 1 or G, N, S) additive mask; S, the slots in use.
        """
        base = self.base[layer]
        known = self._plans.get(id(base))
        if known is not None:
            return known
        assert self.pack is not None
        device = self.keys[layer].device
        rows, heads, capacity, _ = self.keys[layer].shape
        length = base + self.grown.unsqueeze(1)  # (C, 1 or G)
        used = int(length.max()) + self.pack.new
        slot = length[self.pack.rows].T + self.pack.offsets  # (1 or G, m)
        line = self.pack.rows * heads + torch.arange(heads).unsqueeze(1)  # (G, m)
        where = (line * capacity + slot).flatten().to(device)
        seen = length.unsqueeze(-1) + torch.arange(self.pack.new)  # (C, 1 or G, N): the last slot each may see
        visible = torch.arange(used) <= seen.unsqueeze(-1)
        mask = torch.zeros(visible.shape, dtype=self.keys[layer].dtype)
        mask.masked_fill_(~visible, float("-inf"))
        self._plans[id(base)] = (where, mask.to(device), used)
        return self._plans[id(base)]

    def begin(self, pack: _Pack) -> None:
        """Get ready for one forward pass."""
        self.pack = pack
        self._plans = {}

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows of the group."""
        index = torch.tensor(list(keep), dtype=torch.int64)
        bases: dict[int, Tensor] = {}
        for layer in range(len(self.keys)):
            at = index.to(self.keys[layer].device)
            self.keys[layer], self.values[layer] = self.keys[layer][at], self.values[layer][at]
        for layer, base in enumerate(self.base):
            self.base[layer] = bases.setdefault(id(base), base if base.shape == (1, 1) else base[index])
        self.rows = [self.rows[i] for i in keep]
        self.grown = self.grown[index]


class _PackedLayer(DynamicLayer):
    """The face that transformers sees of one layer of a `PackedCache`."""

    def __init__(self, cache: PackedCache, index: int) -> None:
        super().__init__()
        self._cache, self._index = cache, index
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the packed tokens, (1, G, M, D) each, to their rows; they are returned as they came."""
        self._cache.write(self._index, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Positions are given with every call; nothing may be derived from this."""
        return 0


class PackedCache(Cache):
    """Rows of compressed caches that take packed new tokens; each row's tokens see that row only."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        selections: Sequence[Sequence[Tensor]],
        groups: Sequence[Sequence[int]],
        *,
        room: int,
    ) -> None:
        """Gather the kept entries.

        Args:
            layers: For each layer its dense keys and values, (G, T, D) each.
            selections: For each row and layer the kept entries, (G, T) bool.
            groups: Rows that share a buffer; rows of like length waste the least.
            room: New tokens to reserve room for in every row.
        """
        super().__init__(layers=[_PackedLayer(self, index) for index in range(len(layers))])
        self._groups = [
            _Group(
                layers,
                [torch.stack([selections[row][layer] for row in rows]) for layer in range(len(layers))],
                rows,
                room,
            )
            for rows in groups
        ]

    @property
    def rows(self) -> list[int]:
        """The rows still held, in packed order."""
        return [row for group in self._groups for row in group.rows]

    def begin(self, counts: Sequence[int]) -> None:
        """Announce the next forward pass: how many new tokens each of `rows` brings; a finished row brings none."""
        first = 0
        index = 0
        for group in self._groups:
            size = len(group.rows)
            own = counts[index : index + size]
            group.begin(_pack(first, own))
            first, index = first + sum(own), index + size

    def accept(self, counts: Sequence[int]) -> None:
        """Say how many of the last pass's tokens each row keeps; the others are overwritten by the next pass."""
        index = 0
        for group in self._groups:
            group.grown = group.grown + torch.tensor(counts[index : index + len(group.rows)], dtype=torch.int64)
            index += len(group.rows)

    def drop(self, rows: set[int], *, slack: float = 0.25) -> None:
        """Let go of rows that are finished, once they make up more than `slack` of their group.

        Copying a group costs about as much as a step on it, so a few idle rows are carried along. A row that is
        carried along stays in `rows`.
        """
        for group in self._groups:
            keep = [i for i, row in enumerate(group.rows) if row not in rows]
            if keep and len(keep) <= (1 - slack) * len(group.rows):
                group.select(keep)
        self._groups = [group for group in self._groups if any(row not in rows for row in group.rows)]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store packed new tokens, (1, G, M, D) each, at the end of their rows."""
        for group in self._groups:
            assert group.pack is not None
            where, _, _ = group.plan(layer)
            part = slice(group.pack.first, group.pack.last)
            for buffer, new in ((group.keys[layer], keys), (group.values[layer], values)):
                flat = buffer.view(-1, buffer.shape[-1])
                flat.index_copy_(0, where, new[0, :, part].reshape(-1, buffer.shape[-1]))

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """Attention of packed queries, (1, H, M, D), each over its own row; (1, H, M, D)."""
        outputs = []
        heads, width = query.shape[1], query.shape[3]
        for group in self._groups:
            pack = group.pack
            assert pack is not None
            _, mask, used = group.plan(layer)
            keys, values = group.keys[layer][:, :, :used], group.values[layer][:, :, :used]
            rows, kv_heads = keys.shape[:2]
            own = query[0, :, pack.first : pack.last]  # (H, m, D)
            if pack.padded is not None:
                own = own.index_select(1, pack.padded.flatten().to(query.device))
            # Fold the query heads of a kv head into its rows of queries: one matrix product for the whole group.
            shaped = own.view(kv_heads, -1, rows, pack.new, width).permute(2, 0, 1, 3, 4)
            folded = shaped.reshape(rows, kv_heads, -1, width)  # (C, G, H/G * N, D)
            by_query = mask.repeat(1, 1, heads // kv_heads, 1)
            attended = torch.nn.functional.scaled_dot_product_attention(
                folded, keys, values, attn_mask=by_query, scale=scale
            )
            back = attended.view(rows, kv_heads, -1, pack.new, width).permute(1, 2, 0, 3, 4)
            back = back.reshape(heads, rows * pack.new, width)
            if pack.padded is not None:
                back = back.index_select(1, (pack.rows * pack.new + pack.offsets).to(query.device))
            outputs.append(back)
        return torch.cat(outputs, dim=1).unsqueeze(0)


def _pack(first: int, counts: Sequence[int]) -> _Pack:
    new = max(counts)
    if new < 1:
        raise ModelError("A group of candidates was run without new tokens.")
    sizes = torch.tensor(counts, dtype=torch.int64)
    rows = torch.arange(len(counts)).repeat_interleave(sizes)
    starts = sizes.cumsum(0) - sizes
    offsets = torch.arange(int(sizes.sum())) - starts[rows]
    padded = None
    if min(counts) != new:
        padded = starts.unsqueeze(1) + torch.minimum(torch.arange(new), (sizes - 1).clamp(min=0).unsqueeze(1))
        padded = padded.clamp(max=int(sizes.sum()) - 1)  # of rows that bring nothing; never read back
    return _Pack(first, first + sum(counts), rows, offsets, new, padded)
