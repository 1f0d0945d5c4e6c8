"""Takes the kept entries of a layer out of its dense keys and values, for many rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachecraft.runtime.cache import CompressedCache, CompressedLayer


def kept_entries(keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries that selections from one sequence keep, one after another.

    Args:
        keys: (G, T, D), dense.
        values: (G, T, D).
        mask: (B, G, T) bool, the kept entries of each of B rows.

    Returns:
        (S, D) keys and values by row, then head, each head in text order, and (B, G) int64 entries of each head, on
        the CPU.
    """
    tokens = keys.shape[1]
    where = mask.to(keys.device).nonzero()  # (S, 3), by row, then head, then position: text order
    flat = where[:, 1] * tokens + where[:, 2]
    kept = [dense.flatten(0, 1).index_select(0, flat) for dense in (keys, values)]
    return kept[0], kept[1], mask.sum(dim=-1).cpu()


def compressed_layer(
    keys: Tensor, values: Tensor, mask: Tensor, *, seen: int, window: int | None = None
) -> CompressedLayer:
    """A layer whose rows are different selections from one sequence.

    Args:
        keys: (G, T, D), dense.
        values: (G, T, D).
        mask: (B, G, T) bool, the kept entries of each of B rows; every head keeps at least one.
        seen: Tokens seen so far: the position of the next token.
        window: The layer's sliding window; the mask then keeps what `in_window` leaves.

    Raises:
        ModelError: A head keeps nothing.
    """
    return CompressedLayer(*kept_entries(keys, values, mask), seen, window=window)


def in_window(dense: Tensor, window: int) -> Tensor:
    """What a sliding window will still show of (..., T, D) to the next token: the last `window` - 1 entries."""
    return dense[..., max(0, dense.shape[-2] - window + 1) :, :].contiguous()


def window_layer(keys: Tensor, values: Tensor, window: int) -> CompressedLayer:
    """A layer with a sliding window, whose one row holds what the window still shows of (G, T, D) keys and values."""
    held = in_window(keys, window), in_window(values, window)
    mask = torch.ones(1, *held[0].shape[:2], dtype=torch.bool)
    return compressed_layer(*held, mask, seen=keys.shape[1], window=window)


def compressed_cache(
    layers: Sequence[tuple[Tensor, Tensor]],
    masks: Sequence[Tensor],
    *,
    seen: int,
    windows: Sequence[int | None] | None = None,
) -> CompressedCache:
    """A cache whose rows are different selections from one sequence; see `compressed_layer`.

    Args:
        layers: For each layer its dense keys and values, (G, T, D) each; of a sliding window, what `in_window` leaves.
        masks: For each layer (B, G, T) bool.
        seen: Tokens seen so far.
        windows: For each layer its sliding window, or None; by default there are none.
    """
    each = zip(layers, masks, windows or [None] * len(layers), strict=True)
    return CompressedCache(
        [compressed_layer(keys, values, mask, seen=seen, window=window) for (keys, values), mask, window in each]
    )


def counts_of(mask: Tensor) -> tuple[Tensor, int]:
    """Entries kept by each row and head of (B, G, T): (B, G) int64, and the most of them."""
    counts = mask.sum(dim=-1)
    return counts, int(counts.max())


def slots_of(mask: Tensor, counts: Tensor, largest: int, room: int) -> Tensor:
    """(B, G, largest + room) int64: the entry that goes to each slot, in text order, from the left.

    Slots beyond a head's own count point at entry 0 and are not to be read.
    """
    rows, heads, _ = mask.shape
    where = mask.nonzero()  # (n, 3), by row, then head, then position
    if bool((counts == largest).all()):
        kept = where[:, 2].view(rows, heads, largest)
        return torch.nn.functional.pad(kept, (0, room))
    first = (counts.flatten().cumsum(0) - counts.flatten()).view(rows, heads)  # where each head's run begins
    rank = torch.arange(where.shape[0], device=mask.device) - first[where[:, 0], where[:, 1]]
    slots = torch.zeros(rows, heads, largest + room, dtype=torch.int64, device=mask.device)
    slots[where[:, 0], where[:, 1], rank] = where[:, 2]
    return slots


def take(dense: Tensor, slots: Tensor) -> Tensor:
    """Gather (G, T, D) at (B, G, S) into (B, G, S, D)."""
    heads, tokens, width = dense.shape
    offsets = torch.arange(heads, device=slots.device).view(1, heads, 1) * tokens
    flat = (slots + offsets).flatten()
    return dense.reshape(heads * tokens, width).index_select(0, flat).view(*slots.shape, width)
