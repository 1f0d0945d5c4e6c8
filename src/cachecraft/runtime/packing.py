"""Index arithmetic of a packed pass: where each new token is written, and what its row's own new tokens see.

Nothing here touches keys or values: see `cachecraft.runtime.packed`, which does.
Shapes: R lines (rows still held), M packed tokens, G kv heads, S query heads of each, N the most tokens of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 2  # tokens of a line up to which it is attended with all others; longer lines are attended by themselves


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring lines whose own new tokens are attended in one call, padded to N tokens each.

    Attributes:
        first, last: The lines, `last` excluded.
        new: N.
        tokens: (lines * N,) int64, the packed token that is each line's n-th; lines with fewer repeat their last.
        mask: (lines, 1, S * N, used) additive.
        used: Slots in use.
    """

    first: int
    last: int
    new: int
    tokens: Tensor
    mask: Tensor
    used: int


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass.

    Attributes:
        counts: New tokens of each line; 0 for a line that sits this pass out.
        lines: (M,) int64, the line of each packed token.
        where: (M * G,) int64, the slot of each token and kv head in the flat buffers (R * G * room, D).
        parts: How the lines' own new tokens are attended.
        back: (M,) int64, the place of each token among the parts' tokens, one part after another.
    """

    counts: tuple[int, ...]
    lines: Tensor
    where: Tensor
    parts: tuple[Part, ...]
    back: Tensor


def plan(counts: Sequence[int], grown: Tensor, room: int, kv_heads: int, share: int, like: Tensor) -> Pass:
    """Lay a pass out.

    Args:
        counts: New tokens of each line.
        grown: (R,) int64, new tokens that each line holds already.
        room: Slots of a line and kv head.
        kv_heads: G.
        share: S.
        like: Gives the device and dtype of what is returned.
    """
    sizes = torch.tensor(list(counts), dtype=torch.int64)
    begins = sizes.cumsum(0) - sizes
    lines = torch.arange(len(sizes)).repeat_interleave(sizes)
    offsets = torch.arange(len(lines)) - begins[lines]
    slot = lines.unsqueeze(1) * kv_heads + torch.arange(kv_heads)  # (M, G) runs of `room` slots
    where = (slot * room + (grown[lines] + offsets).unsqueeze(1)).flatten()
    parts, back, end = [], torch.empty_like(lines), 0
    for first, last, new in _spans(counts):
        span = slice(first, last)
        within = torch.minimum(torch.arange(new), (sizes[span] - 1).clamp(min=0).unsqueeze(1))  # (lines, N)
        tokens = (begins[span].unsqueeze(1) + within).clamp(max=len(lines) - 1)
        seen = grown[span].unsqueeze(1) + within  # the last slot that each may see
        used = int((grown[span] + sizes[span].clamp(max=new)).max())
        hidden = torch.arange(used) > seen.repeat(1, share).unsqueeze(-1)  # (lines, S * N, used)
        mask = torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, float("-inf"))
        parts.append(Part(first, last, new, tokens.flatten().to(like.device), mask.unsqueeze(1).to(like.device), used))
        whole = (lines >= first) & (lines < last) & (sizes[lines] <= new)
        back[whole] = end + (lines[whole] - first) * new + offsets[whole]
        end += (last - first) * new
    return Pass(tuple(counts), lines, where.to(like.device), tuple(parts), back.to(like.device))


def _spans(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, last, new) of each part: what brings a like number of tokens goes together, so that little is padding."""
    active = [line for line, count in enumerate(counts) if count]
    if len({counts[line] for line in active}) == 1 and active[-1] - active[0] + 1 == len(active):
        return [(active[0], active[-1] + 1, counts[active[0]])]
    few = [line for line in active if counts[line] <= FEW]
    spans = [(few[0], few[-1] + 1, max(counts[line] for line in few))] if few else []
    return spans + [(line, line + 1, counts[line]) for line in active if counts[line] > FEW]
