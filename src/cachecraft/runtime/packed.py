"""Many compressed caches of one context, run together: what lets a grid of candidates cost little more than one.

Rows are candidates. They hold different numbers of entries and, once answers are being generated, have different
numbers of new tokens. The new tokens of all rows are packed into one sequence, so that the linear layers (nearly all
of the arithmetic) see no padding; only attention unpacks them, one group of rows of like length at a time.
Rows are never shipped to a user in this form: see `cachecraft.runtime.cache` for that.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from cachecraft.errors import ModelError
from cachecraft.runtime.gather import counts_of, slots_of


@dataclass
class _Group:
    """Rows that are attended in one call.

    Attributes:
        number: Its place in a layout's `starts` and `capacities`; stays the same when other groups go.
        lines: Its rows, as places in the order the cache was built in.
    """

    number: int
    lines: list[int]


@dataclass(frozen=True, eq=False)
class _Layout:
    """How the flat buffers (slots, D) of a layer are divided; layers that keep equal numbers share one.

    Row c and kv head h of a group begin at slot `start + (c * G + h) * capacity`.

    Attributes:
        kept: (R, G) int64 entries of the context that each row and head holds.
        equal: Whether the heads of each row hold equally many.
        starts, capacities: For each group its first slot, and the slots of one row and head.
    """

    kept: Tensor
    equal: bool
    starts: tuple[int, ...]
    capacities: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Unpacking:
    """How the packed new tokens of one forward pass are spread over the groups, whatever the layer.

    Attributes:
        rows, offsets: For each group (m,) int64, the row within the group, and the place among the row's new tokens,
            of each of its packed tokens.
        new: For each group the most new tokens of any row, N.
        spread: (Σ C * G * H/G * N,) int64, for each folded query the token * H + head it is; a row with fewer than N
            new tokens repeats its last one.
        back: (M * H,) int64, for each token and head its place in the outputs, (C, H/G * N, G) group after group.
    """

    rows: list[Tensor]
    offsets: list[Tensor]
    new: list[int]
    spread: Tensor
    back: Tensor


@dataclass(frozen=True, eq=False)
class _Plan:
    """Where new tokens are written and what they see, for one layout and one forward pass.

    Attributes:
        where: (M * G,) int64 slot of each token and kv head.
        masks: For each group (C, 1 or G, H/G * N, S) additive.
        used: For each group S, the slots in use.
    """

    where: Tensor
    masks: list[Tensor]
    used: list[int]


class _PackedLayer(DynamicLayer):
    """The face that transformers sees of one layer of a `PackedCache`."""

    def __init__(self, cache: PackedCache, index: int) -> None:
        super().__init__()
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
        self._groups: list[_Group] = []
        for number, rows in enumerate(groups):
            first = sum(len(group.lines) for group in self._groups)
            self._groups.append(_Group(number, list(range(first, first + len(rows)))))
        self._grown = torch.zeros(len(self._names), dtype=torch.int64)  # new tokens accepted by each row
        self._layouts: list[_Layout] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        known: dict[bytes, _Layout] = {}
        for index, (keys, values) in enumerate(layers):
            masks = [torch.stack([selections[row][index] for row in rows]) for rows in groups]
            layout, entries = _lay_out(masks, room)
            self._layouts.append(known.setdefault(layout.kept.numpy().tobytes(), layout))
            entries = entries.to(keys.device)
            self._keys.append(keys.reshape(-1, keys.shape[-1]).index_select(0, entries))
            self._values.append(values.reshape(-1, values.shape[-1]).index_select(0, entries))
        self._unpacking: _Unpacking | None = None
        self._plans: dict[int, _Plan] = {}

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
        self._unpacking = _unpacking(sizes, self._heads, self._kv_heads, self._keys[0].device)
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
        plan, unpacking = self._plan(layer), self._unpacking
        assert unpacking is not None
        heads, width = self._heads, query.shape[-1]
        # The query heads of a kv head are folded into its rows of queries, so that keys are not repeated.
        folded = query[0].transpose(0, 1).reshape(-1, width).index_select(0, unpacking.spread)
        outputs = []
        first = 0
        for group, new, mask, used in zip(self._groups, unpacking.new, plan.masks, plan.used, strict=True):
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

    def _held(self, buffers: Sequence[Tensor], layer: int, group: _Group) -> Tensor:
        """A group's part of a layer's keys or values, (C, G, capacity, D), as a view."""
        start, capacity = self._layouts[layer].starts[group.number], self._layouts[layer].capacities[group.number]
        size = len(group.lines) * self._kv_heads * capacity
        return buffers[layer][start : start + size].view(len(group.lines), self._kv_heads, capacity, -1)

    def _move(self, group: _Group, source: int, target: int) -> None:
        for layer in range(len(self._layouts)):
            for buffers in (self._keys, self._values):
                held = self._held(buffers, layer, group)
                held[target] = held[source]

    def _plan(self, layer: int) -> _Plan:
        layout, unpacking = self._layouts[layer], self._unpacking
        assert unpacking is not None
        if id(layout) not in self._plans:
            plan = _plan(layout, unpacking, self._groups, self._grown, self._heads, self._keys[layer])
            self._plans[id(layout)] = plan
        return self._plans[id(layout)]


def _lay_out(masks: Sequence[Tensor], room: int) -> tuple[_Layout, Tensor]:
    """Divide a layer's buffer between groups.

    Args:
        masks: For each group the kept entries, (C, G, T) bool.
        room: Slots for new tokens in every row and head.

    Returns:
        The layout, and for each slot the entry of the flattened (G * T, D) keys that goes there.
    """
    starts, capacities, kept, entries = [], [], [], []
    start = 0
    for mask in masks:
        counts, largest = counts_of(mask)
        rows, heads, tokens = mask.shape
        slots = slots_of(mask, counts, largest, room) + torch.arange(heads).view(1, -1, 1) * tokens
        starts.append(start)
        capacities.append(largest + room)
        kept.append(counts)
        entries.append(slots.flatten())
        start += rows * heads * (largest + room)
    all_kept = torch.cat(kept)
    equal = bool((all_kept == all_kept[:, :1]).all())
    return _Layout(all_kept, equal, tuple(starts), tuple(capacities)), torch.cat(entries)


def _unpacking(sizes: Sequence[Tensor], heads: int, kv_heads: int, device: torch.device) -> _Unpacking:
    """Spread packed tokens over groups; sizes: for each group (C,) int64 new tokens of its rows."""
    share = heads // kv_heads
    head = torch.arange(heads).view(1, kv_heads, share, 1)
    rows, offsets, new, spread, back = [], [], [], [], []
    token, output = 0, 0
    for own in sizes:
        most = int(own.max())
        row = torch.arange(len(own)).repeat_interleave(own)
        begins = own.cumsum(0) - own
        offset = torch.arange(len(row)) - begins[row]
        padded = token + begins.unsqueeze(1) + torch.minimum(torch.arange(most), (own - 1).unsqueeze(1))  # (C, N)
        spread.append((padded.view(-1, 1, 1, most) * heads + head).flatten())
        line = (row.view(-1, 1) * share + torch.arange(share)) * most + offset.view(-1, 1)  # (m, H/G)
        back.append((output + line.unsqueeze(1) * kv_heads + torch.arange(kv_heads).view(1, -1, 1)).flatten())
        rows.append(row)
        offsets.append(offset)
        new.append(most)
        token += len(row)
        output += len(own) * heads * most
    return _Unpacking(rows, offsets, new, torch.cat(spread).to(device), torch.cat(back).to(device))


def _plan(
    layout: _Layout, unpacking: _Unpacking, groups: Sequence[_Group], grown: Tensor, heads: int, like: Tensor
) -> _Plan:
    """Slots and masks of one pass; `like` gives the device and dtype of the masks."""
    kv_heads = layout.kept.shape[1]
    where, masks, used = [], [], []
    for group, rows, offsets, new in zip(groups, unpacking.rows, unpacking.offsets, unpacking.new, strict=True):
        lines = torch.tensor(group.lines)
        length = layout.kept[lines] + grown[lines].unsqueeze(1)  # (C, G)
        begin = torch.arange(len(lines) * kv_heads).view(-1, kv_heads) * layout.capacities[group.number]
        taken = length[rows] + offsets.unsqueeze(1)  # (m, G)
        where.append((layout.starts[group.number] + begin[rows] + taken).flatten())
        used.append(int(taken.max()) + 1)
        if layout.equal:
            length = length[:, :1]
        last = length.unsqueeze(-1) + torch.arange(new).repeat(heads // kv_heads)  # (C, 1 or G, H/G * N)
        hidden = torch.arange(used[-1]) > last.unsqueeze(-1)
        masks.append(torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, float("-inf")).to(like.device))
    return _Plan(torch.cat(where).to(like.device), masks, used)
