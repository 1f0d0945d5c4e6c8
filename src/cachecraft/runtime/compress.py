"""`with compress(model, ...)`: whole prompts are compressed while the model's own `generate` or forward reads them.

Inside the block the model's forward is led through CacheCraft's attention and its cache filled with what a policy
keeps; everything else of `generate` is transformers' own. What cannot work on a compressed cache (beam search, static
caches, padding on the right, …) is refused. How a prompt is read layer by layer is in turns.py.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.policy.contract import Policy
from cachecraft.runtime import compat, rope
from cachecraft.runtime.attention import attending, running
from cachecraft.runtime.eviction import Budgeted
from cachecraft.runtime.new_tokens import NewTokens
from cachecraft.runtime.slices import replaced, token_slices
from cachecraft.runtime.structure import ModelStructure
from cachecraft.runtime.turn_layers import TurnLayer, UnreadLayer, held_layers
from cachecraft.runtime.turns import Decoding, Reading

HOLD_BACK = 8  # tokens at a prompt's end that are read over the compressed cache, as where policies are measured

_ENTERING = threading.Lock()  # two threads must not both find a model free
_MARK = "_cachecraft_compression"  # an attribute of the model while a block around it lasts


@dataclass(frozen=True)
class CompressedPrompt:
    """What was kept of the newest prompt, right after it was read.

    Attributes:
        tokens: Tokens of each row, padding left out; those of earlier turns on the same cache are counted in.
        kept: (L, B, G) int64: entries held of each layer, row and kv head, held-back tokens included.
        bytes: Bytes of the keys and values held.
        full_bytes: Bytes that the keys and values of all tokens would take, or of all that sliding windows show.
        scoring_seconds: What the policy's features, scores and selection took.
        forced: Protection filled the whole budget, so that the policy's scores decided nothing.
        note: What of the allocation had to give way, in one sentence; "" if nothing had.
    """

    tokens: tuple[int, ...]
    kept: Tensor
    bytes: int
    full_bytes: int
    scoring_seconds: float
    forced: bool
    note: str = ""


class Compression:
    """What `compress` gives its block: the policy's name, and what became of the newest prompt.

    Attributes:
        policy: Name of the policy, with the parameters that differ from their defaults.
        last: The newest prompt that was read inside the block, or None before the first one.
    """

    def __init__(self, structure: ModelStructure, asked: Budgeted, tokenizer: Any | None, hold_back: int) -> None:
        """Use `compress` instead."""
        self._structure, self._asked, self._tokenizer, self._hold_back = structure, asked, tokenizer, hold_back
        inner = structure.model.base_model
        self._names = [name for name in inspect.signature(type(inner).forward).parameters if name != "self"]
        self._cache_name = compat.cache_keyword(inner)
        self._switch = rope.switch(structure.model)
        self.policy = asked.policy.name
        self.last: CompressedPrompt | None = None

    def _forward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One forward pass of the model inside the block."""
        if running():  # CacheCraft runs the model itself, over a cache of its own
            return original(*args, **kwargs)
        call = dict(zip(self._names, args, strict=False)) | kwargs
        cache = self._cache_of(call)
        held = held_layers(cache)
        if held and (len(held), held[0].kv_heads) != (self._structure.layers, self._structure.kv_heads):
            raise ModelError("The cache was made with another model; begin with an empty one.")
        new = NewTokens.of(call, held[0].seen if held else 0, held[0].pads if held else None)
        self._require_room(new, held)
        call |= {"position_ids": new.positions, "attention_mask": None, self._cache_name: cache}
        columns = new.ids.shape[1]
        with torch.no_grad():
            if held and columns <= max(1, self._hold_back):
                with attending(self._structure.model, turn=Decoding(held)):
                    return original(**call)
            return self._read(original, call, cache, held, new)

    def _require_room(self, new: NewTokens, held: list[TurnLayer]) -> None:
        """Refuse rows that are longer than the model's context, or that it would rotate differently."""
        lengths = (new.positions.amax(dim=1) + 1).tolist()
        read = held[0].seen - min(new.pads) if held else None
        self._structure.require_room(max(lengths), read=read)
        if self._switch is not None and min(lengths) <= self._switch < max(lengths):
            raise ModelError(
                f"The model rotates keys otherwise in texts of more than {self._switch} tokens, so rows of "
                f"{min(lengths)} and {max(lengths)} tokens would disturb each other in one batch; run them apart."
            )

    def _cache_of(self, call: dict[str, Any]) -> DynamicCache:
        """The call's cache, a new one where the model would make it."""
        use = call.get("use_cache")
        if not (self._structure.model.config.use_cache if use is None else use):
            raise ModelError("Without a cache there is nothing to compress; leave out use_cache=False.")
        if call.get("output_attentions"):
            raise ModelError("CacheCraft's attention gives no weights; leave out output_attentions.")
        cache = call.get(self._cache_name)
        if cache is None:
            return DynamicCache(config=self._structure.model.config)
        if not isinstance(cache, DynamicCache) or cache.offloading:
            kind = "An offloaded cache" if isinstance(cache, DynamicCache) else f"A {type(cache).__name__}"
            raise ModelError(f"{kind} cannot be compressed; leave the cache out or pass an empty DynamicCache().")
        return cache

    def _read(
        self,
        original: Callable[..., Any],
        call: dict[str, Any],
        cache: DynamicCache,
        held: list[TurnLayer],
        new: NewTokens,
    ) -> Any:
        """Read a turn; whatever goes wrong, the cache is then as it was before."""
        structure = self._structure
        reading = Reading(structure, self._asked, self._tokenizer, new, self._hold_back, held)
        seen = held[0].seen if held else 0
        before = list(cache.layers)
        cache.layers[:] = [UnreadLayer(seen) for _ in range(structure.layers)]
        try:
            with attending(structure.model, turn=reading), token_slices(structure.model):
                output = original(**call)
            if reading.waits:
                reading.settle()
                if reading.tail:
                    with attending(structure.model, turn=reading):
                        output = _with_tail(output, original(**_tail_of(call, reading.tail)), reading.tail)
            layers = reading.finish(new.pads, seen + new.ids.shape[1])
        except BaseException:
            cache.layers[:] = before
            raise
        cache.layers[:] = layers
        self.last = _prompt(layers, reading)
        return output

    def _generate(
        self, original: Callable[..., Any], inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`generate`, after what cannot work was refused: beam search would fail only once the prompt was read."""
        own = self._structure.model.generation_config
        if own is not None and own.cache_implementation and kwargs.get(self._cache_name) is None:
            # Some models come with a kind of cache of their own; what the caller asks for goes first and is looked at.
            kwargs.setdefault(
                "cache_implementation", getattr(generation_config, "cache_implementation", None) or "dynamic"
            )
        if problem := compat.undecodable(self._structure.model, generation_config, kwargs):
            raise ModelError(
                f"A compressed cache does not work with {problem}; decode greedily or by sampling, with the default "
                "cache."
            )
        return original(inputs, generation_config, *args, **kwargs)


@contextmanager
def compress(
    model: PreTrainedModel,
    *,
    policy: str | Policy = "keydiff",
    ratio: float | None = None,
    keep: int | None = None,
    selector: str | None = None,
    allocation: str | None = None,
    hold_back: int = HOLD_BACK,
    tokenizer: Any | None = None,
    force: bool = False,
) -> Iterator[Compression]:
    """Compress every prompt that the model reads inside the block, each layer as soon as it is done.

        with cachecraft.compress(model, policy="snapkv", ratio=0.75):
            model.generate(**batch)

    `generate` and forward calls work unchanged: greedy and sampled, batches padded on the left (each row is compressed
    as it would be alone), several return sequences. A later turn on the same cache, inside this block or another one,
    has its own new tokens compressed in the same way; decoded tokens all stay. Calls may come from any thread; they
    take turns. After the block, and after whatever ends it, the model is as it was before.

    Args:
        model: A causal language model.
        policy: What chooses: a name, a file or a specification such as ``"snapkv:window=32"``.
        ratio: Share of the entries to evict, from 0 up to, but not including, 1.
        keep: Entries to keep per kv head on average, instead of a ratio.
        selector: ``"tokens"``, ``"chunks:20"`` or ``"pages:16"`` instead of the policy's own.
        allocation: ``"uniform"``, ``"pyramid"``, ``"reversed_pyramid"``, ``"adaptive"``, ``"global"`` or a budgets
            file: how many entries each layer and head keeps; each row's total is the budget's.
        hold_back: How many tokens at the end of each prompt are not compressed but read over what was kept of the
            others, so that the first new token is never predicted from the full cache; a turn no longer than this
            stays as it is.
        tokenizer: The model's tokenizer, for policies that look at special tokens or punctuation.
        force: Go on with a class of models that CacheCraft was not tested with.

    Yields:
        What became of the newest prompt: entries and bytes kept, seconds of scoring.

    Raises:
        BudgetError: Both or neither of ratio and keep are given, or the number means nothing, or budgets are for
            another model.
        ModelError: The model is not supported or is being compressed already; inside the block: the decoding method,
            cache or padding cannot be compressed, or a prompt is longer than the model's context.
        PolicyError: The policy cannot be loaded or, inside the block, breaks the contract.
    """
    asked = Budgeted.of(policy, ratio, keep, selector, allocation)
    if hold_back < 0:
        raise ModelError(f"hold_back={hold_back} tokens mean nothing; give 0 or more.")
    structure = ModelStructure.of(model, force=force)
    asked.require_model(structure)
    compression = Compression(structure, asked, tokenizer, hold_back)
    with (
        _alone(model),
        replaced(model.base_model, "forward", compression._forward),
        replaced(model, "generate", compression._generate),
    ):
        yield compression


@contextmanager
def _alone(model: PreTrainedModel) -> Iterator[None]:
    """Refuse a second block around the same model: it would not be clear which policy decides."""
    with _ENTERING:
        if hasattr(model, _MARK):
            raise ModelError("This model is being compressed already; leave the other `with compress(...)` first.")
        setattr(model, _MARK, True)
    try:
        yield
    finally:
        delattr(model, _MARK)


def _tail_of(call: dict[str, Any], tail: int) -> dict[str, Any]:
    """The same call with its last `tail` tokens only."""
    cut = {"input_ids": call["input_ids"][:, -tail:], "position_ids": call["position_ids"][:, -tail:]}
    if isinstance(call.get("cache_position"), Tensor):  # releases before it was dropped
        cut["cache_position"] = call["cache_position"][-tail:]
    return call | cut


def _with_tail(whole: Any, tail: Any, columns: int) -> Any:
    """The output of the first pass with its last columns replaced by those of the second one."""

    def joined(first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first[:, : first.shape[1] - columns], second), dim=1)

    whole.last_hidden_state = joined(whole.last_hidden_state, tail.last_hidden_state)
    if getattr(whole, "hidden_states", None) is not None:
        whole.hidden_states = tuple(map(joined, whole.hidden_states, tail.hidden_states))
    return whole


def _prompt(layers: list[TurnLayer], reading: Reading) -> CompressedPrompt:
    first = layers[0]
    tokens = tuple(first.seen - pad for pad in first.pads)
    return CompressedPrompt(
        tokens=tokens,
        kept=torch.stack([layer.lengths for layer in layers]),
        bytes=sum(layer.bytes for layer in layers),
        full_bytes=sum(
            layer.bytes_per_entry * layer.kv_heads * sum(min(each, (layer.window or each + 1) - 1) for each in tokens)
            for layer in layers
        ),
        scoring_seconds=reading.scoring_seconds,
        forced=reading.forced,
        note=reading.note,
    )
