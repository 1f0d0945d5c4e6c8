"""Index arithmetic of a packed pass: where each new token is written, and what its row's own new tokens see.

Nothing here touches keys or values: see `cachecraft.runtime.packed`, which does.
Shapes: R lines (rows still held), M packed tokens, G kv heads, S query heads of each, N the most tokens of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 16  # tokens of a line up to which it is attended with all others; longer lines are attended by themselves


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring lines whose own new tokens are attended in one call, padded to N tokens each.

    Attributes:
        first, last: The lines, `last` excluded.
        new: N.
        tokens: (lines * N,) int64, the packed token that is each line's n-th; lines with fewer repeat their last.
        masks: (lines, 1, S * N, used) additive, by the layer's sliding window; one that hides nothing has none.
        used: Slots in use.
    """

    first: int
    last: int
    new: int
    tokens: Tensor
    masks: dict[int | None, Tensor]
    used: int

    def mask(self, window: int | None) -> Tensor:
        """The mask of a layer with this sliding window, or None for none."""
        return self.masks.get(window, self.masks[None])


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass.

    Attributes:
        counts: New tokens of each line; 0 for a line that sits this pass out.
        lines: (M,) int64, the line of each packed token.
        slots: (M,) int64, its place among the line's new tokens, those of earlier passes included.
        where: (M * G,) int64, the slot of each token and kv head in the flat buffers (R * G * room, D).
        parts: How the lines' own new tokens are attended.
        back: (M,) int64, the place of each token among the parts' tokens, one part after another.
    """

    counts: tuple[int, ...]
    lines: Tensor
    slots: Tensor
    where: Tensor
    parts: tuple[Part, ...]
    back: Tensor


def plan(
    counts: Sequence[int],
    grown: Tensor,
    room: int,
    kv_heads: int,
    share: int,
    like: Tensor,
    windows: Sequence[int | None] = (),
) -> Pass:
    """Lay a pass out.

    Args:
        counts: New tokens of each line.
        grown: (R,) int64, new tokens that each line holds already.
        room: Slots of a line and kv head.
        kv_heads: G.
        share: S.
        like: Gives the device and dtype of what is returned.
        windows: The layers' sliding windows.
    """
    sizes = torch.tensor(list(counts), dtype=torch.int64)
    begins = sizes.cumsum(0) - sizes
    lines = torch.arange(len(sizes)).repeat_interleave(sizes)
    offsets = torch.arange(len(lines)) - begins[lines]
    slots = grown[lines] + offsets
    runs = lines.unsqueeze(1) * kv_heads + torch.arange(kv_heads)  # (M, G) of `room` slots each
    where = (runs * room + slots.unsqueeze(1)).flatten()
    parts, back, end = [], torch.empty_like(lines), 0
    for first, last, new in _spans(counts):
        span = slice(first, last)
        within = torch.minimum(torch.arange(new), (sizes[span] - 1).clamp(min=0).unsqueeze(1))  # (lines, N)
        tokens = (begins[span].unsqueeze(1) + within).clamp(max=len(lines) - 1)
        seen = grown[span].unsqueeze(1) + within  # the last slot that each may see
        used = int((grown[span] + sizes[span].clamp(max=new)).max())
        masks = _masks(seen.repeat(1, share).unsqueeze(-1), used, windows, like)
        parts.append(Part(first, last, new, tokens.flatten().to(like.device), masks, used))
        whole = (lines >= first) & (lines < last) & (sizes[lines] <= new)
        back[whole] = end + (lines[whole] - first) * new + offsets[whole]
        end += (last - first) * new
    return Pass(tuple(counts), lines, slots.to(like.device), where.to(like.device), tuple(parts), back.to(like.device))


def _masks(last: Tensor, used: int, windows: Sequence[int | None], like: Tensor) -> dict[int | None, Tensor]:
    """The masks of tokens that see slots up to (lines, S * N, 1) `last`, by window."""
    slot, masks = torch.arange(used), {}
    for window in {None, *windows}:
        if window is None or window < used:
            hidden = slot > last if window is None else (slot > last) | (slot <= last - window)
            mask = torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, float("-inf"))
            masks[window] = mask.unsqueeze(1).to(like.device)
    return masks


def _spans(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, last, new) of each part: what brings a like number of tokens goes together, so that little is padding."""
    active = [line for line, count in enumerate(counts) if count]
    if len({counts[line] for line in active}) == 1 and active[-1] - active[0] + 1 == len(active):
        return [(active[0], active[-1] + 1, counts[active[0]])]
    few = [line for line in active if counts[line] <= FEW]
    spans = [(few[0], few[-1] + 1, max(counts[line] for line in few))] if few else []
    return spans + [(line, line + 1, counts[line]) for line in active if counts[line] > FEW]
