"""The compressed cache: what is left of a context after eviction, and the tokens that come after it.

Keys are stored as the model computed them, rotated by their true position, in text order. New tokens continue at
the true position: `get_seq_length` returns how many tokens were seen, not how many are stored. Layers may hold
different numbers of entries, and so may rows and kv heads of a layer; each row and head is stored from the left,
`lengths` says how far it goes, and new tokens are written right after its last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from cachecraft.errors import ModelError


class CompressedLayer(DynamicLayer):
    """One layer: a buffer (B, G, capacity, D) of keys and one of values."""

    def __init__(self, keys: Tensor, values: Tensor, seen: int, lengths: Tensor | None = None) -> None:
        """Take over stored entries.

        Args:
            keys: (B, G, S, D) post-RoPE keys, in text order, from the left.
            values: (B, G, S, D).
            seen: How many tokens of the sequence have been seen: the next one's position.
            lengths: (B, G) int64 entries in use, or None when all rows and heads use all S.

        Raises:
            ModelError: Shapes that do not fit each other, or lengths outside 1 … S.
        """
        super().__init__()
        if keys.dim() != 4 or keys.shape[:3] != values.shape[:3]:
            raise ModelError(f"Keys of shape {tuple(keys.shape)} do not fit values of shape {tuple(values.shape)}.")
        if lengths is not None and (
            lengths.shape != keys.shape[:2] or int(lengths.min()) < 1 or int(lengths.max()) > keys.shape[2]
        ):
            raise ModelError(f"Lengths {lengths.tolist()} do not fit {keys.shape[2]} stored entries.")
        self._key_buffer, self._value_buffer = keys, values
        self.filled = keys.shape[2]
        self.seen = seen
        self.lengths = lengths
        self.is_initialized = True
        self._show()

    def _show(self) -> None:
        self.keys = self._key_buffer[:, :, : self.filled]
        self.values = self._value_buffer[:, :, : self.filled]

    def reserve(self, new: int) -> None:
        """Make room for `new` more tokens, so that adding them copies nothing else."""
        missing = self.filled + new - self._key_buffer.shape[2]
        if missing > 0:
            self._key_buffer = _with_room(self._key_buffer, self.filled, missing)
            self._value_buffer = _with_room(self._value_buffer, self.filled, missing)
            self._show()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new tokens, (B, G, N, D) each, and return all keys and values, (B, G, S + N, D)."""
        new = key_states.shape[2]
        if self.filled + new > self._key_buffer.shape[2]:
            self.reserve(max(new, self.filled // 2, 16))
        if self.lengths is None:
            self._key_buffer[:, :, self.filled : self.filled + new] = key_states
            self._value_buffer[:, :, self.filled : self.filled + new] = value_states
        else:
            slots = self.lengths.to(key_states.device).unsqueeze(-1) + torch.arange(new, device=key_states.device)
            index = slots.unsqueeze(-1).expand(-1, -1, -1, key_states.shape[-1])
            self._key_buffer.scatter_(2, index, key_states)
            self._value_buffer.scatter_(2, index, value_states)
            self.lengths = self.lengths + new
        self.filled += new
        self.seen += new
        self._show()
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """How many tokens of the sequence have been seen; the next token's position."""
        return self.seen

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Refuse: masks are the attention function's business here."""
        raise ModelError("A compressed cache works only inside `with attending(...)`, which masks by itself.")

    @property
    def stored(self) -> Tensor:
        """(B, G) int64: entries in use by each row and kv head."""
        if self.lengths is not None:
            return self.lengths
        return torch.full(self._key_buffer.shape[:2], self.filled, dtype=torch.int64)

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values in use."""
        width = self.keys.shape[-1] * self.keys.element_size() + self.values.shape[-1] * self.values.element_size()
        return int(self.stored.sum()) * width

    def fork(self, new: int) -> CompressedLayer:
        """A copy with room for `new` more tokens."""
        copy = CompressedLayer(self.keys, self.values, self.seen, self.lengths)
        copy._key_buffer = _with_room(self.keys, self.filled, new)
        copy._value_buffer = _with_room(self.values, self.filled, new)
        copy._show()
        return copy

    def visible(self, new: int) -> Tensor | None:
        """Which entries each of the last `new` tokens may see: bool (B or 1, G or 1, N, S), or None for all.

        To be asked after `update`.
        """
        slots = torch.arange(self.filled)
        before = torch.arange(new) - new  # token i may see up to and with entry length + before[i]
        if self.lengths is None:
            return None if new == 1 else (slots <= (self.filled + before).unsqueeze(1)).view(1, 1, new, -1)
        return slots <= (self.lengths.unsqueeze(-1) + before).unsqueeze(-1)


def _with_room(buffer: Tensor, filled: int, missing: int) -> Tensor:
    larger = buffer.new_zeros(*buffer.shape[:2], filled + missing, buffer.shape[3])
    larger[:, :, :filled] = buffer[:, :, :filled]
    return larger


class CompressedCache(Cache):
    """A compressed layer for each layer of the model; usable wherever transformers takes a cache.

    To be used inside `cachecraft.runtime.attention.attending(model, cache=...)`.
    """

    def __init__(self, layers: Sequence[CompressedLayer]) -> None:
        """Take over the layers, in the model's order."""
        super().__init__(layers=list(layers))

    def fork(self, new: int) -> CompressedCache:
        """A copy with room for `new` more tokens; this one stays as it is, whatever the copy is used for."""
        return CompressedCache([layer.fork(new) for layer in self.layers])

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values in use."""
        return sum(layer.bytes for layer in self.layers)

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attention of the newest tokens' queries, (B, H, N, D), over all entries of a layer; (B, H, N, D)."""
        heads, kv_heads = query.shape[1], keys.shape[1]
        visible = self.layers[layer].visible(query.shape[2])
        mask = None
        if visible is not None:
            if visible.shape[1] > 1:
                visible = visible.repeat_interleave(heads // kv_heads, dim=1)
            mask = torch.zeros(visible.shape, dtype=query.dtype).masked_fill_(~visible, float("-inf"))
            mask = mask.to(query.device)
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=scale, enable_gqa=heads != kv_heads
        )
