"""Many compressed caches of one context, run together: what lets a grid of candidates cost little more than one.

Rows are candidates. They hold different numbers of entries and, once answers are being generated, have different
numbers of new tokens. The new tokens of all rows are packed into one sequence, so that the linear layers (nearly all
of the arithmetic) see no padding; only attention unpacks them, one group of rows of like length at a time.
Rows are never shipped to a user in this form: see `cachecraft.runtime.cache` for that.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from cachecraft.errors import ModelError
from cachecraft.runtime.packing import Group, Layout, Plan, Unpacking, lay_out, plan, unpack


class _PackedLayer(DynamicLayer):
    """The face that transformers sees of one layer of a `PackedCache`."""

    def __init__(self, cache: PackedCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A weak reference: a cycle would keep hundreds of megabytes until the garbage collector happens to run.
        self._cache, self._index = weakref.ref(cache), index
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the packed tokens, (1, G, M, D) each, to their rows; they are returned as they came."""
        cache = self._cache()
        assert cache is not None
        cache.write(self._index, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Positions are given with every call; nothing may be derived from this."""
        return 0


class PackedCache(Cache):
    """Rows of compressed caches that take packed new tokens; each row's tokens see that row only.

    A pass is `begin`, the model's forward, `accept`; `drop` may follow.
    """

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        selections: Sequence[Sequence[Tensor]],
        groups: Sequence[Sequence[int]],
        *,
        heads: int,
        room: int,
    ) -> None:
        """Gather the kept entries.

        Args:
            layers: For each layer its dense keys and values, (G, T, D) each.
            selections: For each row and layer the kept entries, (G, T) bool.
            groups: Rows that are attended together; rows of like length waste the least.
            heads: Query heads, H.
            room: New tokens to reserve room for in every row.
        """
        super().__init__(layers=[_PackedLayer(self, index) for index in range(len(layers))])
        self._names = [row for rows in groups for row in rows]
        self._heads, self._kv_heads = heads, int(layers[0][0].shape[0])
        self._groups: list[Group] = []
        for number, rows in enumerate(groups):
            first = sum(len(group.lines) for group in self._groups)
            self._groups.append(Group(number, list(range(first, first + len(rows)))))
        self._grown = torch.zeros(len(self._names), dtype=torch.int64)  # new tokens accepted by each row
        self._layouts: list[Layout] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        known: dict[bytes, Layout] = {}
        for index, (keys, values) in enumerate(layers):
            masks = [torch.stack([selections[row][index] for row in rows]) for rows in groups]
            layout, entries = lay_out(masks, room)
            self._layouts.append(known.setdefault(layout.kept.numpy().tobytes(), layout))
            entries = entries.to(keys.device)
            self._keys.append(keys.reshape(-1, keys.shape[-1]).index_select(0, entries))
            self._values.append(values.reshape(-1, values.shape[-1]).index_select(0, entries))
        self._unpacking: Unpacking | None = None
        self._plans: dict[int, Plan] = {}

    @property
    def rows(self) -> list[int]:
        """The rows still held, in packed order."""
        return [self._names[line] for group in self._groups for line in group.lines]

    @property
    def bytes(self) -> int:
        """Bytes of the buffers, room and padding included."""
        return sum(buffer.numel() * buffer.element_size() for buffer in (*self._keys, *self._values))

    def begin(self, counts: Sequence[int]) -> None:
        """Announce the next forward pass: how many new tokens each of `rows` brings.

        Raises:
            ModelError: A row brings none.
        """
        if len(counts) != len(self.rows) or min(counts, default=0) < 1:
            raise ModelError(f"{len(self.rows)} candidates were run with {list(counts)} new tokens; each needs some.")
        sizes = []
        for group in self._groups:
            sizes.append(torch.tensor(counts[: len(group.lines)], dtype=torch.int64))
            counts = counts[len(group.lines) :]
        self._unpacking = unpack(sizes, self._heads, self._kv_heads, self._keys[0].device)
        self._plans = {}

    def accept(self, counts: Sequence[int]) -> None:
        """Say how many of the last pass's tokens each row keeps; the others are overwritten by the next pass."""
        lines = torch.tensor([line for group in self._groups for line in group.lines], dtype=torch.int64)
        self._grown[lines] += torch.tensor(list(counts), dtype=torch.int64)

    def drop(self, rows: set[int]) -> None:
        """Let go of rows that are finished; the last row of a group takes the place of one that goes."""
        for group in self._groups:
            for place in reversed(range(len(group.lines))):
                if self._names[group.lines[place]] in rows:
                    last = len(group.lines) - 1
                    if place != last:
                        self._move(group, last, place)
                        group.lines[place] = group.lines[last]
                    group.lines.pop()
        self._groups = [group for group in self._groups if group.lines]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store packed new tokens, (1, G, M, D) each, at the end of their rows."""
        where = self._plan(layer).where
        for buffer, new in ((self._keys[layer], keys), (self._values[layer], values)):
            # The projections lie in memory as (M, G, D), so that this order costs no copy.
            buffer.index_copy_(0, where, new[0].transpose(0, 1).reshape(-1, buffer.shape[-1]))

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """Attention of packed queries, (1, H, M, D), each over its own row; (1, H, M, D)."""
        own_plan, unpacking = self._plan(layer), self._unpacking
        assert unpacking is not None
        heads, width = self._heads, query.shape[-1]
        # The query heads of a kv head are folded into its rows of queries, so that keys are not repeated.
        folded = query[0].transpose(0, 1).reshape(-1, width).index_select(0, unpacking.spread)
        outputs = []
        first = 0
        for group, new, mask, used in zip(self._groups, unpacking.new, own_plan.masks, own_plan.used, strict=True):
            rows = len(group.lines)
            own = folded[first : first + rows * heads * new].view(rows, self._kv_heads, -1, width)
            first += rows * heads * new
            attended = torch.nn.functional.scaled_dot_product_attention(
                own,
                self._held(self._keys, layer, group)[:, :, :used],
                self._held(self._values, layer, group)[:, :, :used],
                attn_mask=mask,
                scale=scale,
            )  # (C, G, H/G * N, D)
            outputs.append(attended.transpose(1, 2).reshape(-1, attended.shape[-1]))
        joined = torch.cat(outputs).index_select(0, unpacking.back)
        return joined.view(1, -1, heads, joined.shape[-1]).transpose(1, 2)

    def _held(self, buffers: Sequence[Tensor], layer: int, group: Group) -> Tensor:
        """A group's part of a layer's keys or values, (C, G, capacity, D), as a view."""
        start, capacity = self._layouts[layer].starts[group.number], self._layouts[layer].capacities[group.number]
        size = len(group.lines) * self._kv_heads * capacity
        return buffers[layer][start : start + size].view(len(group.lines), self._kv_heads, capacity, -1)

    def _move(self, group: Group, source: int, target: int) -> None:
        for layer in range(len(self._layouts)):
            for buffers in (self._keys, self._values):
                held = self._held(buffers, layer, group)
                held[target] = held[source]

    def _plan(self, layer: int) -> Plan:
        layout, unpacking = self._layouts[layer], self._unpacking
        assert unpacking is not None
        if id(layout) not in self._plans:
            self._plans[id(layout)] = plan(layout, unpacking, self._groups, self._grown, self._heads, self._keys[layer])
        return self._plans[id(layout)]
