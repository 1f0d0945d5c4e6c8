"""Many compressed caches run together: what lets a grid of candidates cost little more than one.

Lines are candidates, of one context or of several. They keep different entries of it and, once answers are being
generated, have different numbers of new tokens. The new tokens of all lines are packed into one sequence, so that the
linear layers (nearly all of the arithmetic) see no padding; attention over the context and over a line's own new
tokens is computed apart and joined by their log-sum-exps.
A user is never shipped a cache in this form, which frees nothing: see `cachecraft.runtime.cache` for that.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from cachecraft.errors import ModelError
from cachecraft.runtime import compat
from cachecraft.runtime.packing import Pass, plan
from cachecraft.runtime.shared import SharedContext, Together

MANY = 8  # new tokens per line from which gathering a line's entries pays


class _PackedLayer(DynamicLayer):
    """The face that transformers sees of one layer of a `PackedCache`."""

    def __init__(self, cache: PackedCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A weak reference: a cycle would keep hundreds of megabytes until the garbage collector happens to run.
        self._cache, self._index = weakref.ref(cache), index
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the packed tokens, (1, G, M, D) each, to their lines; they are returned as they came."""
        cache = self._cache()
        assert cache is not None
        cache.write(self._index, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Positions are given with every call; nothing may be derived from this."""
        return 0


class PackedCache(Cache):
    """Lines that take packed new tokens; each line's tokens see its own entries and new tokens only.

    A pass is `begin`, the model's forward, `accept`; `drop` and `admit` may follow.
    """

    def __init__(
        self, like: Sequence[tuple[Tensor, Tensor]], *, heads: int, windows: Sequence[int | None] | None = None
    ) -> None:
        """An empty cache; `admit` adds lines.

        Args:
            like: For each layer keys and values, (G, T, D) each, whose kind the new tokens' will be.
            heads: Query heads, H.
            windows: For each layer its sliding window, or None; by default there are none. Of such a layer contexts
                hold what the window shows to their next token, and candidates keep all of it.
        """
        super().__init__(layers=[_PackedLayer(self, index) for index in range(len(like))])
        self._kv_heads, self._share = int(like[0][0].shape[0]), heads // int(like[0][0].shape[0])
        self._windows: tuple[int | None, ...] = tuple(windows or [None] * len(like))
        self._names: list[int] = []  # of each line
        self._owner: dict[int, tuple[SharedContext, int]] = {}  # of each name held: its context and candidate
        self._next = 0
        self._room = 0  # slots of each line and kv head
        self._grown = torch.zeros(0, dtype=torch.int64)  # new tokens that each line holds
        self._keys = [keys.new_zeros(0, keys.shape[-1]) for keys, _ in like]
        self._values = [values.new_zeros(0, values.shape[-1]) for _, values in like]
        self._shared: dict[int, list[Together]] = {}  # by context
        self._pass: Pass | None = None
        self._together: list[tuple[Together, Tensor, Tensor]] = []  # with their packed tokens, and the tokens' places
        self._joined = torch.empty(0, dtype=torch.int64)

    def admit(self, context: SharedContext, room: int) -> list[int]:
        """Add a line for each candidate of a context, which is used as it is.

        Args:
            context: The context and what its candidates keep.
            room: New tokens that each of its lines will take at most.

        Returns:
            The names of the new lines.
        """
        new = list(range(self._next, self._next + len(context.selections)))
        self._reserve(len(self._names) + len(new), max(room, self._room))
        self._grown[len(self._names) : len(self._names) + len(new)] = 0
        self._owner |= {name: (context, candidate) for candidate, name in enumerate(new)}
        self._names += new
        self._next += len(new)
        return new

    @property
    def rows(self) -> list[int]:
        """The names of the lines still held, in packed order."""
        return list(self._names)

    def begin(self, counts: Sequence[int]) -> None:
        """Announce the next forward pass: how many new tokens each of `rows` brings; some may bring none.

        Raises:
            ModelError: Not a number for each, none at all, or more than there is room for.
        """
        grown = self._grown[: len(self._names)]
        if len(counts) != len(self._names) or min(counts, default=-1) < 0 or not sum(counts):
            raise ModelError(f"{len(self._names)} candidates were run with {list(counts)} new tokens; each needs some.")
        if int((grown + torch.tensor(list(counts))).max()) > self._room:
            raise ModelError(f"The candidates were run with more new tokens than the {self._room} they have room for.")
        self._pass = plan(counts, grown, self._room, self._kv_heads, self._share, self._keys[0], self._windows)
        self._together = []
        if sum(counts) < MANY * sum(count > 0 for count in counts):
            self._gather_together(self._pass.lines)

    def accept(self, counts: Sequence[int]) -> None:
        """Say how many of the last pass's tokens each line keeps; the others are overwritten by the next pass."""
        self._grown[: len(self._names)] += torch.tensor(list(counts), dtype=torch.int64)

    def drop(self, rows: set[int]) -> None:
        """Let go of lines that are finished; the last line takes the place of one that goes."""
        for line in reversed(range(len(self._names))):
            if (name := self._names[line]) in rows:
                last = len(self._names) - 1
                if line != last:
                    self._move(last, line)
                self._names.pop()
                del self._owner[name]
        live = {id(context) for context, _ in self._owner.values()}
        self._shared = {key: shared for key, shared in self._shared.items() if key in live}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store packed new tokens, (1, G, M, D) each, at the end of their lines."""
        assert self._pass is not None
        for buffer, new in ((self._keys[layer], keys), (self._values[layer], values)):
            # The projections lie in memory as (M, G, D), so that this order costs no copy.
            buffer.index_copy_(0, self._pass.where, new[0].transpose(0, 1).reshape(-1, buffer.shape[-1]))

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float | None = None) -> Tensor:
        """Attention of packed queries, (1, H, M, D), each over its own line; (1, H, M, D).

        `softcap` limits the scaled logits.
        """
        tokens = query[0].transpose(0, 1).reshape(query.shape[2], self._kv_heads, self._share, query.shape[3])
        own, own_weight = self._attend_own(layer, tokens, scale, softcap)
        context, context_weight = self._attend_context(layer, tokens, scale, softcap)
        # exp(a) / (exp(a) + exp(b)) = sigmoid(a - b): the context's part of the whole softmax.
        part = torch.sigmoid(context_weight - own_weight).unsqueeze(-1).to(own.dtype)
        joined = torch.lerp(own, context, part)  # (M, G, S, D)
        return joined.view(1, len(joined), -1, joined.shape[-1]).transpose(1, 2)

    def _attend_own(self, layer: int, tokens: Tensor, scale: float, softcap: float | None) -> tuple[Tensor, Tensor]:
        """Over the line's own new tokens: (M, G, S, D) and (M, G, S) float32 log-sum-exp."""
        assert self._pass is not None
        outputs, weights = [], []
        for part in self._pass.parts:
            lines, heads, width = part.last - part.first, self._kv_heads, tokens.shape[-1]
            queries = tokens.index_select(0, part.tokens).view(lines, part.new, heads, self._share, width)
            output, weight = compat.attention_with_lse(
                queries.permute(0, 2, 3, 1, 4).reshape(lines, heads, -1, width),
                self._held(self._keys[layer], part.first, part.last)[:, :, : part.used],
                self._held(self._values[layer], part.first, part.last)[:, :, : part.used],
                scale,
                part.mask(self._windows[layer]),
                softcap=softcap,
            )
            spread = (lines, heads, self._share, part.new)
            outputs.append(output.reshape(*spread, -1).permute(0, 3, 1, 2, 4).flatten(0, 1))
            weights.append(weight.reshape(spread).permute(0, 3, 1, 2).flatten(0, 1))
        back = self._pass.back
        return torch.cat(outputs).index_select(0, back), torch.cat(weights).index_select(0, back)

    def _attend_context(self, layer: int, tokens: Tensor, scale: float, softcap: float | None) -> tuple[Tensor, Tensor]:
        """Over the line's entries of its context; as `_attend_own`."""
        assert self._pass is not None
        slots, window = self._pass.slots, self._windows[layer]

        def sliding(context: SharedContext, size: int, own: Tensor | slice) -> tuple[Tensor, Tensor]:
            return context.attend_window(layer, size, slots[own], tokens[own], scale, softcap)

        if self._together:
            found = [
                shared.attend(layer, places, tokens.index_select(0, own), scale, softcap)
                if window is None
                else sliding(shared.context, window, own)
                for shared, own, places in self._together
            ]
            outputs, weights = (torch.cat(each).index_select(0, self._joined) for each in zip(*found, strict=True))
            return outputs, weights
        found, end = [], 0
        for name, count in zip(self._names, self._pass.counts, strict=True):
            if count:
                context, candidate = self._owner[name]
                own = slice(end, end + count)
                found.append(
                    context.attend_alone(layer, candidate, tokens[own], scale, softcap)
                    if window is None
                    else sliding(context, window, own)
                )
                end += count
        outputs, weights = (torch.cat(each) for each in zip(*found, strict=True))
        return outputs, weights

    def _gather_together(self, lines: Tensor) -> None:
        """Divide the pass's packed tokens between contexts, and between groups of their candidates."""
        candidates: dict[int, list[int]] = {}
        contexts: dict[int, SharedContext] = {}
        for name in self._names:
            context, candidate = self._owner[name]
            candidates.setdefault(id(context), []).append(candidate)
            contexts[id(context)] = context
        for key, context in contexts.items():
            # What the candidates still running keep together shrinks as others finish: worth copies now and then.
            held = sum(len(group.places) for group in self._shared.get(key, ()))
            if 2 * len(candidates[key]) <= held or not held:
                self._shared[key] = Together.of(context, candidates[key])
        shared = [group for key in contexts for group in self._shared[key]]
        places = {
            (id(group.context), candidate): (index, place)
            for index, group in enumerate(shared)
            for candidate, place in group.places.items()
        }
        member = [places[id(context), candidate] for context, candidate in map(self._owner.__getitem__, self._names)]
        by_token = torch.tensor(member)[lines]  # (M, 2)
        device, order = self._keys[0].device, []
        for index, group in enumerate(shared):
            own = (by_token[:, 0] == index).nonzero().flatten()
            if len(own):
                self._together.append((group, own.to(device), by_token[own, 1].to(device)))
                order.append(own)
        self._joined = torch.cat(order).argsort().to(device)

    def _reserve(self, lines: int, room: int) -> None:
        """Make room for lines and for new tokens of each; what is held stays."""
        held, before = len(self._names), self._room
        if lines <= len(self._grown) and room == before:
            return
        lines = max(lines, len(self._grown))
        for buffers in (self._keys, self._values):
            for index, buffer in enumerate(buffers):
                width = buffer.shape[-1]
                # Zeros and not whatever memory holds: a hidden slot's weight of 0 times NaN would be NaN.
                grown = buffer.new_zeros(lines, self._kv_heads, room, width)
                size = held * self._kv_heads * before
                grown[:held, :, :before] = buffer[:size].view(held, self._kv_heads, before, width)
                buffers[index] = grown.view(-1, width)
        more = torch.zeros(lines, dtype=torch.int64)
        more[:held] = self._grown[:held]
        self._grown, self._room = more, room

    def _held(self, buffer: Tensor, first: int, last: int) -> Tensor:
        """Lines' part of a layer's keys or values, (lines, G, room, D), as a view."""
        size = self._kv_heads * self._room
        return buffer[first * size : last * size].view(last - first, self._kv_heads, self._room, -1)

    def _move(self, source: int, target: int) -> None:
        grown = int(self._grown[source])
        for buffer in (*self._keys, *self._values):
            moved = self._held(buffer, source, source + 1)[:, :, :grown]
            self._held(buffer, target, target + 1)[:, :, :grown].copy_(moved)
        self._grown[target], self._names[target] = grown, self._names[source]
