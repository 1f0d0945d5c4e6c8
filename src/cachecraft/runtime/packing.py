"""Index arithmetic of the packed batch: which slot each entry and new token takes, and what each new token sees.

Nothing here touches keys or values: see `cachecraft.runtime.packed`, which does.
Shapes: C rows of a group, H query heads, G kv heads, m packed tokens of a group, M of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.runtime.gather import counts_of, slots_of


@dataclass
class Group:
    """Rows that are attended in one call.

    Attributes:
        number: Its place in a layout's `starts` and `capacities`; stays the same when other groups go.
        lines: Its rows, as places in the order the cache was built in.
    """

    number: int
    lines: list[int]


@dataclass(frozen=True, eq=False)
class Layout:
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
class Unpacking:
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
class Plan:
    """Where new tokens are written and what they see, for one layout and one forward pass.

    Attributes:
        where: (M * G,) int64 slot of each token and kv head.
        masks: For each group (C, 1 or G, H/G * N, S) additive.
        used: For each group S, the slots in use.
    """

    where: Tensor
    masks: list[Tensor]
    used: list[int]


def lay_out(masks: Sequence[Tensor], room: int) -> tuple[Layout, Tensor]:
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
    return Layout(all_kept, equal, tuple(starts), tuple(capacities)), torch.cat(entries)


def unpack(sizes: Sequence[Tensor], heads: int, kv_heads: int, device: torch.device) -> Unpacking:
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
    return Unpacking(rows, offsets, new, torch.cat(spread).to(device), torch.cat(back).to(device))


def plan(
    layout: Layout, unpacking: Unpacking, groups: Sequence[Group], grown: Tensor, heads: int, like: Tensor
) -> Plan:
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
    return Plan(torch.cat(where).to(like.device), masks, used)
