"""One forward pass of a model that is being compressed: it reads the tokens of a turn, or decodes after them.

While a turn is read, each layer attends densely within every row's own tokens, lets the policy choose among them and
keeps what was chosen before the next layer begins. The last tokens of a turn, its tail, attend to what was kept and
stay. Padding takes part in nothing. Which passes read and which decode is decided in compress.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cachecraft.errors import ModelError
from cachecraft.runtime import families, kernels
from cachecraft.runtime.cache import CompressedCache, CompressedLayer
from cachecraft.runtime.eviction import Budgeted, Eviction, Kept
from cachecraft.runtime.features import SequenceFeatures, require_expected
from cachecraft.runtime.new_tokens import NewTokens
from cachecraft.runtime.structure import ModelStructure
from cachecraft.runtime.turn_layers import TurnLayer, extended, followed, in_order, windowed


class Decoding:
    """New tokens that all stay: the cache holds them already when their attention is asked for."""

    def __init__(self, layers: Sequence[CompressedLayer]) -> None:
        """Attend to these layers."""
        self._cache = CompressedCache(layers)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        *,
        softcap: float | None,
        window: int | None,
    ) -> Tensor:
        """Attention of the new tokens, (B, H, N, D), over everything held; (B, H, N, D)."""
        return self._cache.attend(layer, query, scale, softcap=softcap, window=window)


@dataclass(frozen=True)
class _Group:
    """Rows with the same padding: what is compressed of them lies in the columns from `start` up to `split`."""

    rows: list[int]
    start: int
    split: int


@dataclass(frozen=True, eq=False)
class _Call:
    """What a layer's attention was called with, for the rows of one group."""

    layer: int
    query: Tensor  # (b, H, N, D)
    key: Tensor  # (b, G, N, D)
    value: Tensor  # (b, G, N, D)
    scale: float
    softcap: float | None
    window: int | None


class Reading:
    """A turn whose tokens are compressed, except for its last ones.

    Attributes:
        tail: How many columns at the end are held back.
        waits: The policy divides its budget over the layers, so nothing is kept before all of them were seen: the
            first pass attends densely, and the tail has to run again over what was kept then.
    """

    def __init__(
        self,
        structure: ModelStructure,
        asked: Budgeted,
        tokenizer: Any | None,
        new: NewTokens,
        hold_back: int,
        held: Sequence[CompressedLayer],
    ) -> None:
        """Prepare to read.

        Args:
            structure: The model's structure.
            asked: The policy and its budget, of each row's own tokens.
            tokenizer: For policies that look at special tokens or punctuation; may be None.
            new: The tokens to read.
            hold_back: How many tokens at the end stay, whatever the policy.
            held: What earlier turns left in each layer; empty at the first one. Later turns have no padding.
        """
        self._columns = new.ids.shape[1]
        self._structure = structure
        self._windows = families.windows(structure.model)
        self._held = held
        self.tail = min(hold_back, self._columns)
        by_pad: dict[int, list[int]] = {}
        for row, pad in enumerate((0,) * len(new.pads) if held else new.pads):
            by_pad.setdefault(pad, []).append(row)
        self._groups = [_Group(rows, pad, max(pad, self._columns - self.tail)) for pad, rows in by_pad.items()]
        self._evictions: dict[int, Eviction] = {}
        for group in self._groups:
            span = slice(group.start, group.split)
            for row in group.rows if group.split > group.start else ():
                ids, positions = new.ids[row, span].tolist(), new.positions[row, span]
                self._evictions[row] = Eviction(asked, SequenceFeatures.of(structure, tokenizer, ids, positions))
        self.waits = asked.policy.waits and bool(self._evictions)
        self._rest: dict[int, Iterator[tuple[int, Kept]]] | None = None
        self._shown: dict[tuple[int, int], CompressedLayer | None] = {}  # what waiting turns keep of sliding windows
        self._layers: list[CompressedLayer] = []
        self._next = 0  # the layer that this pass has to show next

    @property
    def scoring_seconds(self) -> float:
        """Time spent on features, scores and selection, of all rows."""
        return sum(eviction.seconds for eviction in self._evictions.values())

    @property
    def note(self) -> str:
        """What of an allocation had to give way in a row, in one sentence; "" if nothing had."""
        return next((eviction.note for eviction in self._evictions.values() if eviction.note), "")

    @property
    def forced(self) -> bool:
        """Whether protection left nothing to the scorer in any layer and row."""
        return bool(self._evictions) and all(eviction.forced for eviction in self._evictions.values())

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        *,
        softcap: float | None,
        window: int | None,
    ) -> Tensor:
        """Attention of the new tokens; what is kept of them is stored on the way.

        Args:
            layer: Index of the layer; each is asked once in a pass, in order.
            query: (B, H, N, D) post-RoPE.
            key: (B, G, N, D) post-RoPE.
            value: (B, G, N, D).
            scale: Factor of the dot products.
            softcap: Limit of the scaled logits.
            window: How many entries a token sees by the model's settings, itself included.

        Returns:
            (B, H, N, D), zeros where padding asks.
        """
        if layer != self._next:
            self._refuse(f"layer {layer} where layer {self._next} was expected")
        require_expected(self._structure, layer, (scale, softcap, window), self._windows[layer])
        self._next += 1
        # Laid out as the model wants it next, so that nothing is copied then.
        output = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        parts: list[tuple[list[int], CompressedLayer]] = []
        for number, group in enumerate(self._groups):
            rows: Any = group.rows if len(self._groups) > 1 else slice(None)
            call = _Call(layer, query[rows], key[rows], value[rows], scale, softcap, window)
            for columns, found in self._attend_group(number, group, call, parts):
                output[rows, :, columns] = found
                del found  # as large as the queries, and the policy is asked next
        if parts:
            self._layers.append(in_order(parts))
        return output

    def _attend_group(
        self, number: int, group: _Group, call: _Call, parts: list[tuple[list[int], CompressedLayer]]
    ) -> Iterator[tuple[slice, Tensor]]:
        """The group's outputs, each with its columns; what is stored of the group joins `parts`."""
        columns = call.query.shape[2]
        if self._rest is None:
            own = slice(group.start, columns if self.waits else group.split)
            norms = None
            if own.stop > own.start:
                read, norms = self._dense(call, own)
                yield own, read
                del read
            lead = self._lead(group, call, norms)
            if self.waits:
                self._shown[call.layer, number] = lead
                return
        else:
            lead = self._settled(call.layer, number)
        tail = slice(columns - (self._columns - group.split), columns)
        part = extended(lead, call.key[:, :, tail], call.value[:, :, tail], self._structure.windows[call.layer])
        if tail.stop > tail.start:
            yield tail, part.attend(call.query[:, :, tail], call.scale, call.softcap)
        parts.append((group.rows, part))

    def _before(self, layer: int) -> CompressedLayer | None:
        return self._held[layer] if self._held else None

    def _dense(self, call: _Call, own: slice) -> tuple[Tensor, Tensor | None]:
        """Attention of some columns over themselves and what was held before; the log-sum-exp where nothing was."""
        query, key, value = (each[:, :, own] for each in (call.query, call.key, call.value))
        before = self._before(call.layer)
        if before is None:
            return kernels.causal_attention(query, key, value, call.scale, softcap=call.softcap, window=call.window)
        return extended(before, key, value).attend(query, call.scale, call.softcap), None

    def _lead(self, group: _Group, call: _Call, norms: Tensor | None) -> CompressedLayer | None:
        """What is held of a group's rows before their tail; None if that is nothing, or not decided yet."""
        before = self._before(call.layer)
        window = self._structure.windows[call.layer]
        if window is not None:
            lead = slice(group.start, group.split)
            return windowed(before, call.key[:, :, lead], call.value[:, :, lead], window)
        kept = self._decided(group, call, norms)
        return None if self.waits else followed(before, kept)

    def _settled(self, layer: int, number: int) -> CompressedLayer | None:
        """The same, once a policy that waits has seen all layers."""
        assert self._rest is not None
        if self._structure.windows[layer] is not None:
            return self._shown.pop((layer, number))
        kept = [next(self._rest[row])[1] for row in self._groups[number].rows if row in self._rest]
        return followed(self._before(layer), kept)

    def _decided(self, group: _Group, call: _Call, norms: Tensor | None) -> list[Kept]:
        """What the policy keeps of the group's rows; nothing where it waits or a row is all tail."""
        query, key, value = (each[:, :, group.start : group.split] for each in (call.query, call.key, call.value))
        kept = []
        for place, row in enumerate(group.rows):
            if row in self._evictions:
                norm = None if norms is None else norms[place, :, : query.shape[2]].float().contiguous()
                decided = self._evictions[row].see(
                    call.layer, query[place].contiguous(), key[place].contiguous(), value[place].contiguous(), norm
                )
                kept += [] if decided is None else [decided]
        return kept

    def settle(self) -> None:
        """Divide the budget of a policy that waits; a second pass over the tail follows unless there is no tail."""
        self._require_all()
        self._rest = {row: eviction.rest() for row, eviction in self._evictions.items()}
        self._next = 0
        if self.tail == 0:
            for layer in range(self._structure.layers):
                parts = [(group.rows, self._settled(layer, number)) for number, group in enumerate(self._groups)]
                self._layers.append(in_order([(rows, part) for rows, part in parts if part is not None]))
            self._next = self._structure.layers

    def finish(self, pads: Sequence[int], seen: int) -> list[TurnLayer]:
        """The layers, once every one was read."""
        self._require_all()
        return [TurnLayer.adopt(layer, pads, seen) for layer in self._layers]

    def _require_all(self) -> None:
        if self._next != self._structure.layers:
            self._refuse(f"{self._next} of {self._structure.layers} layers")

    def _refuse(self, seen: str) -> None:
        raise ModelError(f"The model showed CacheCraft {seen}; this model or transformers release cannot be used.")
