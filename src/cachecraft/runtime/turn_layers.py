"""The layers of a cache that is compressed while transformers uses it, and how their parts are put together.

A turn builds its layers from what was held before, what the policy kept and what is held back; here is how entries of
heads and rows that differ in length are joined. Which entries those are is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from cachecraft.errors import ModelError
from cachecraft.runtime.attention import running
from cachecraft.runtime.cache import CompressedLayer
from cachecraft.runtime.eviction import Kept
from cachecraft.runtime.gather import in_window


class TurnLayer(CompressedLayer):
    """A layer of the cache that transformers passes around: it knows its rows' padding and guards its own use."""

    pads: tuple[int, ...]

    @classmethod
    def adopt(cls, layer: CompressedLayer, pads: Sequence[int], seen: int) -> TurnLayer:
        """Take over a layer's entries; `pads` and `seen` count columns of the batch."""
        own = cls.__new__(cls)
        own.__dict__ |= layer.__dict__
        own.pads, own.seen = tuple(pads), seen
        return own

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new tokens, (B, G, N, D) each; refused outside of `with compress(...)`."""
        if not running():
            self.get_mask_sizes()
        return super().update(key_states, value_states)

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Refuse: another attention function would not know what this layer holds."""
        raise ModelError(
            "This cache was compressed, so it can be used only inside `with compress(model, ...)`; put the call there."
        )


class UnreadLayer(DynamicLayer):
    """Stands for a layer while its turn is read: it takes nothing, since the turn stores what is kept of it."""

    def __init__(self, seen: int) -> None:
        """Stand for a layer that has seen so many columns before."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Hand the new tokens back as they came."""
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Columns seen before this turn."""
        return self._seen


def held_layers(cache: DynamicCache) -> list[TurnLayer]:
    """What earlier turns left in a cache; [] for an empty one.

    Raises:
        ModelError: The cache holds tokens that were not read inside a `with compress`, or half a forward pass.
    """
    held = [layer for layer in cache.layers if isinstance(layer, TurnLayer)]
    if not held:
        if seen := cache.get_seq_length():
            raise ModelError(
                f"The cache holds {seen} tokens that were read uncompressed; begin with an empty one inside the block."
            )
        return []
    if len(held) != len(cache.layers) or len({layer.seen for layer in held}) > 1:
        raise ModelError("The cache was left in the middle of an interrupted forward pass; begin with an empty one.")
    return held


def _heads(layer: CompressedLayer) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each head, by row and then by kv head."""
    counts = layer.lengths.flatten().tolist()
    keys, values = layer.entries()
    return list(zip(keys.split(counts), values.split(counts), strict=True))


def _layer_of(
    heads: Sequence[Sequence[tuple[Tensor, Tensor]]], rows: int, window: int | None = None
) -> CompressedLayer:
    """A layer from the parts of each head, by row and then by kv head."""
    counts = torch.tensor([sum(keys.shape[0] for keys, _ in parts) for parts in heads]).view(rows, -1)
    keys = torch.cat([keys for parts in heads for keys, _ in parts])
    values = torch.cat([values for parts in heads for _, values in parts])
    return CompressedLayer(keys, values, counts, int(counts.max()), window=window)


def followed(before: CompressedLayer | None, kept: Sequence[Kept]) -> CompressedLayer | None:
    """What was held, then what is kept of the new tokens of each row; None if that is nothing at all."""
    if not kept:
        return before
    counts = torch.stack([each.counts for each in kept])
    keys, values = torch.cat([each.keys for each in kept]), torch.cat([each.values for each in kept])
    new = CompressedLayer(keys, values, counts, int(counts.max()))
    if before is None:
        return new
    return _layer_of(list(zip(_heads(before), _heads(new), strict=True)), len(kept))


def extended(before: CompressedLayer | None, key: Tensor, value: Tensor, window: int | None = None) -> CompressedLayer:
    """A copy of what was held with new tokens, (B, G, N, D) each, after it; `window` is that of the layer."""
    new = key.shape[2]
    if before is not None:
        grown = before.fork(new) if new else before
        if new:
            grown.update(key, value)
        return grown
    lengths = torch.full(key.shape[:2], new, dtype=torch.int64)
    keys, values = (each.reshape(-1, each.shape[-1]) for each in (key, value))
    return CompressedLayer(keys, values, lengths, new, window=window)


def windowed(before: CompressedLayer | None, key: Tensor, value: Tensor, window: int) -> CompressedLayer | None:
    """What a sliding window still shows after new tokens, (B, G, N, D) each; None if that is nothing at all."""
    if before is not None:
        return extended(before, key, value).fork(0)  # whose room ends with what is shown
    if key.shape[2] == 0:
        return None
    return extended(None, in_window(key, window), in_window(value, window), window)


def in_order(parts: Sequence[tuple[Sequence[int], CompressedLayer]]) -> CompressedLayer:
    """One layer of the rows of several, each with the places of its rows."""
    if len(parts) == 1:
        return parts[0][1]
    by_row: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for rows, layer in parts:
        heads = _heads(layer)
        for place, row in enumerate(rows):
            by_row[row] = heads[place * layer.kv_heads : (place + 1) * layer.kv_heads]
    heads_in_order = [[head] for row in sorted(by_row) for head in by_row[row]]
    return _layer_of(heads_in_order, len(by_row), parts[0][1].window)
