"""The compressed cache: what is left of a context after eviction, and the tokens that come after it.

Keys are stored as the model computed them, rotated by their true position, in text order. New tokens continue at
the true position: `get_seq_length` returns how many tokens were seen, not how many are stored. Layers may hold
different numbers of entries, and so may rows and kv heads of a layer; heads of equal length share a buffer, so
nothing is padded and the memory taken is that of the entries kept. A layer with a sliding window is not compressed:
it holds what the window will still show to the next token, as in the stock cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from cachecraft.errors import ModelError
from cachecraft.runtime.blocks import blocks_of
from cachecraft.runtime.kernels import masked_attention, visible

GROWTH = 8  # a block that is full grows by an eighth
LEAST_ROOM = 16  # tokens that it grows by at least


class CompressedLayer(DynamicLayer):
    """One layer's entries, of B rows with G kv heads each."""

    def __init__(self, keys: Tensor, values: Tensor, lengths: Tensor, seen: int, *, window: int | None = None) -> None:
        """Take over stored entries.

        Args:
            keys: (S, D) post-RoPE keys of all heads one after another, by row and then by kv head, each in text order.
            values: (S, D) likewise.
            lengths: (B, G) int64 entries of each head, summing to S.
            seen: How many tokens of the sequence have been seen: the next one's position.
            window: How many entries a token of a layer with a sliding window sees, itself included. The layer then
                holds its newest entries, at most `window` - 1 of each head.

        Raises:
            ModelError: Shapes that do not fit each other, or a head without an entry.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen
        self.window = window
        self.is_initialized = True
        self.rows, self.kv_heads = lengths.shape
        counts: list[int] = lengths.flatten().tolist()
        least = 1 if window is None else 0  # a window of one entry keeps none
        if min(counts) < least or not sum(counts) == keys.shape[0] == values.shape[0] or seen < max(counts):
            raise ModelError(
                f"Lengths {lengths.tolist()} do not fit {keys.shape[0]} keys and {values.shape[0]} values of "
                f"{seen} tokens; every head needs at least one entry and at most one for each token."
            )
        self._blocks = blocks_of(keys, values, counts)
        several = [block.heads for block in self._blocks if block.heads is not None]
        self._order = torch.cat(several) if several else None  # heads as the blocks hold them, one after another
        self._back = None if self._order is None else self._order.argsort()

    def _by_block(self, heads: Tensor) -> tuple[Tensor, ...]:
        """Each block's part of (B * G, …); sorted once, since single picks from many blocks add up."""
        ordered = heads if self._order is None else heads.index_select(0, self._order)
        parts: tuple[Tensor, ...] = ordered.split([block.keys.shape[0] for block in self._blocks])
        return parts

    def reserve(self, new: int) -> None:
        """Make room for `new` more tokens; what grows does so in proportion to what it holds, so that few copies do."""
        self._blocks = [
            block
            if block.keys.shape[1] >= block.filled + new
            else block.with_room(max(new, block.filled // GROWTH, LEAST_ROOM), self.window)
            for block in self._blocks
        ]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new tokens, (B, G, N, D) each; they are returned as they came, since heads differ in length."""
        new = key_states.shape[2]
        self.reserve(new)
        parts = self._by_block(key_states.flatten(0, 1)), self._by_block(value_states.flatten(0, 1))
        for block, keys, values in zip(self._blocks, *parts, strict=True):
            added = slice(block.filled, block.filled + new)
            block.keys[:, added] = keys
            block.values[:, added] = values
            block.filled += new
        self.seen += new
        return key_states, value_states

    def attend(self, query: Tensor, scale: float, softcap: float | None = None) -> Tensor:
        """Attention of the newest tokens' queries, (B, H, N, D), each over its head's entries; (B, H, N, D).

        To be asked after `update`: new token i sees everything, or all that its window shows, but the new tokens
        after it. `softcap` limits the scaled logits.
        """
        rows, heads, new, width = query.shape
        # The query heads of a kv head become rows of one matrix, so that no key is repeated for its group.
        folded = query.reshape(rows * self.kv_heads, -1, width)  # (B * G, H/G * N, D)
        outputs = []
        for block, own in zip(self._blocks, self._by_block(folded), strict=True):
            used = block.in_use(self.window, new)
            keys, values = block.keys[:, used], block.values[:, used]
            seen = visible(keys.shape[1], new, query.device, window=self.window)
            seen = None if seen is None else seen.repeat(heads // self.kv_heads, 1)
            if softcap is not None:
                attended, _ = masked_attention(own, keys, values, scale, softcap=softcap, seen=seen)
            else:
                attended = torch.nn.functional.scaled_dot_product_attention(
                    own.unsqueeze(1), keys.unsqueeze(1), values.unsqueeze(1), attn_mask=seen, scale=scale
                ).squeeze(1)
            outputs.append(attended)
        output = outputs[0] if self._back is None else torch.cat(outputs).index_select(0, self._back)
        return output.view(rows, heads, new, -1)

    def get_seq_length(self) -> int:
        """How many tokens of the sequence have been seen; the next token's position."""
        return self.seen

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Refuse: masks are the attention function's business here."""
        raise ModelError("A compressed cache works only inside `with attending(...)`, which masks by itself.")

    @property
    def lengths(self) -> Tensor:
        """(B, G) int64, on the CPU: entries in use by each row and kv head."""
        lengths = torch.empty(self.rows * self.kv_heads, dtype=torch.int64)
        for block in self._blocks:
            used = block.in_use(self.window)
            lengths[slice(None) if block.heads is None else block.heads.cpu()] = used.stop - used.start
        return lengths.view(self.rows, self.kv_heads)

    def entries(self) -> tuple[Tensor, Tensor]:
        """The keys and values in use, (S, D) each, in the order that the constructor takes."""
        heads: dict[int, tuple[Tensor, Tensor]] = {}
        for block in self._blocks:
            order = range(self.rows * self.kv_heads) if block.heads is None else block.heads.tolist()
            used = block.in_use(self.window)
            for place, head in enumerate(order):
                heads[head] = block.keys[place, used], block.values[place, used]
        pairs = [heads[head] for head in range(len(heads))]
        return torch.cat([keys for keys, _ in pairs]), torch.cat([values for _, values in pairs])

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values in use."""
        return self.bytes_per_entry * int(self.lengths.sum())

    @property
    def stored_bytes(self) -> int:
        """Bytes of memory that its tensors really take, room for new tokens included."""
        storages = [side.untyped_storage() for block in self._blocks for side in (block.keys, block.values)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    @property
    def full_bytes(self) -> int:
        """Bytes that the layer would take if nothing was evicted: all tokens, or all that its window shows."""
        entries = self.seen if self.window is None else min(self.seen, self.window - 1)
        return self.bytes_per_entry * self.rows * self.kv_heads * entries

    @property
    def bytes_per_entry(self) -> int:
        """Bytes that one entry of one head takes."""
        block = self._blocks[0]
        return sum(side.shape[-1] * side.element_size() for side in (block.keys, block.values))

    def fork(self, new: int) -> CompressedLayer:
        """A copy with room for `new` more tokens."""
        copy = object.__new__(CompressedLayer)
        copy.__dict__ |= self.__dict__
        copy._blocks = [block.with_room(new, self.window) for block in self._blocks]
        return copy

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ModelError(
            "A compressed cache cannot be cut, reordered or moved, as beam search and assisted decoding do; "
            "decode greedily or by sampling, from a fork."
        )

    # Inherited forms of these would work on tensors that this layer does not have.
    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse


class CompressedCache(Cache):
    """A compressed layer for each layer of the model; usable wherever transformers takes a cache.

    To be used inside `cachecraft.runtime.attention.attending(model, cache=...)`; elsewhere it refuses new tokens,
    because another attention function would not know what it holds.
    """

    def __init__(self, layers: Sequence[CompressedLayer]) -> None:
        """Take over the layers, in the model's order."""
        super().__init__(layers=list(layers))
        self.attended = False  # set by `attending` while its block runs

    def __bool__(self) -> bool:
        """A cache is a cache, however few entries or layers it has."""
        return True

    @property
    def compressed(self) -> list[CompressedLayer]:
        """The layers."""
        return cast("list[CompressedLayer]", self.layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append a layer's new tokens, (B, G, N, D) each; they are returned as they came.

        Raises:
            ModelError: The call comes from outside of `with attending(model, cache=...)` for this cache.
        """
        if not self.attended:
            raise ModelError("A compressed cache takes new tokens only inside `with attending(model, cache=...)`.")
        return self.compressed[layer_idx].update(key_states, value_states)

    def attend(
        self, layer: int, query: Tensor, scale: float, *, softcap: float | None = None, window: int | None = None
    ) -> Tensor:
        """Attention of the newest tokens' queries, (B, H, N, D), over a layer's entries; (B, H, N, D).

        Args:
            layer: The layer.
            query: The queries.
            scale: Factor of the dot products.
            softcap: Limit of the scaled logits.
            window: How many entries a token sees by the model's settings, itself included.

        Raises:
            ModelError: The layer has evicted entries and its window has now begun to move past the text's beginning.
        """
        held = self.compressed[layer]
        if held.window != window and not (held.window is None and window is not None and held.seen <= window):
            raise ModelError(
                f"Layer {layer} attends to the last {window or held.seen} of {held.seen} tokens, which is not what its "
                f"entries were kept for (the last {held.window or held.seen}); use fewer tokens or make the cache anew."
            )
        return held.attend(query, scale, softcap)

    def fork(self, new: int) -> CompressedCache:
        """A copy with room for `new` more tokens; this one stays as it is, whatever the copy is used for."""
        return CompressedCache([layer.fork(new) for layer in self.compressed])

    @property
    def lengths(self) -> Tensor:
        """(L, B, G) int64, on the CPU: entries in use by each layer, row and kv head."""
        return torch.stack([layer.lengths for layer in self.compressed])

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values in use."""
        return sum(layer.bytes for layer in self.compressed)

    @property
    def stored_bytes(self) -> int:
        """Bytes of memory that its tensors really take, room for new tokens included."""
        return sum(layer.stored_bytes for layer in self.compressed)
