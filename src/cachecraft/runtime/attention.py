"""The attention function that CacheCraft registers with transformers, and the `with` that switches a model to it.

It does three things that the stock functions do not: it shows an observer the post-RoPE queries, keys and values
of every layer; it leaves the masks to the cache, which knows how many entries each of its layers, rows and heads
holds; and it runs many candidates' caches as one packed batch.
It does not decide what is kept: see `cachecraft.policy`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime import compat, kernels
from cachecraft.runtime.cache import CompressedCache
from cachecraft.runtime.packed import PackedCache

ATTENTION_NAME = "cachecraft"


@dataclass(frozen=True)
class LayerCall:
    """What one layer's attention was called with.

    Attributes:
        layer: Index of the layer.
        queries: (B, H, N, D) post-RoPE queries of the new tokens (packed: one row for all candidates).
        keys: (B, G, N, D) post-RoPE keys of the new tokens.
        values: (B, G, N, D).
        logsumexp: (B, H, N) float32 of the scaled causal logits, or None where the kernel does not give it.
        scaling: Factor of the dot products.
        softcap: What the scaled logits are soft-capped at, or None.
        window: How many entries a token sees, itself included, or None for all before it.
    """

    layer: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    logsumexp: Tensor | None
    scaling: float
    softcap: float | None = None
    window: int | None = None

    def alone(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The only row's queries (H, N, D), keys and values (G, S, D) and log-sum-exp (H, N) float32 or None.

        Projections come as strided views of (N, heads, D); contiguous copies make every later pass cheaper.
        """
        logsumexp = None if self.logsumexp is None else self.logsumexp[0].float().contiguous()
        return self.queries[0].contiguous(), self.keys[0].contiguous(), self.values[0].contiguous(), logsumexp


Observer = Callable[[LayerCall], None]


class Turn(Protocol):
    """A forward pass over new tokens of a batch, whose padding and eviction are its own business."""

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
        """Attention of the new tokens: queries (B, H, N, D) over what is held and keys, values (B, G, N, D)."""


@dataclass(frozen=True)
class _Session:
    """What the attention function needs to know during one `with attending(...)`."""

    cache: CompressedCache | PackedCache | None
    observer: Observer | None
    turn: Turn | None


_SESSION: ContextVar[_Session | None] = ContextVar("cachecraft_attention", default=None)
# A model has one attention setting for all threads, so one block at a time; a thread may nest its own.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def attending(
    model: PreTrainedModel,
    *,
    cache: CompressedCache | PackedCache | None = None,
    observer: Observer | None = None,
    turn: Turn | None = None,
) -> Iterator[None]:
    """Run `model` with CacheCraft's attention inside the block; the model's own setting returns afterwards.

    Args:
        model: The model; its attention setting is restored whatever happens inside.
        cache: The compressed cache that calls inside the block will use, if any.
        observer: Called once per layer and forward pass with a `LayerCall`.
        turn: Does the attention of the one forward pass in the block instead, padding included.

    Other threads wait until the block ends, so it should not be left open across a `yield`.

    Raises:
        ModelError: Inside the block: the model is given padding or a static or quantised cache.
    """
    compat.register_attention(ATTENTION_NAME, _attention)
    with _ONE_AT_A_TIME, nullcontext() if turn else _refusing_what_is_not_ours(model), _attended(cache):
        before = model.config._attn_implementation
        token = _SESSION.set(_Session(cache, observer, turn))
        try:
            model.config._attn_implementation = ATTENTION_NAME
            yield
        finally:
            model.config._attn_implementation = before
            _SESSION.reset(token)


def running() -> bool:
    """Whether this thread is inside a `with attending(...)`."""
    return _SESSION.get() is not None


@contextmanager
def _attended(cache: CompressedCache | PackedCache | None) -> Iterator[None]:
    if not isinstance(cache, CompressedCache):
        yield
        return
    before = cache.attended
    cache.attended = True
    try:
        yield
    finally:
        cache.attended = before


@contextmanager
def _refusing_what_is_not_ours(model: PreTrainedModel) -> Iterator[None]:
    """Refuse masks while the block runs, which transformers would drop without a word, and caches of other kinds."""
    keyword = compat.cache_keyword(model.base_model)

    def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        compat.require_growing_cache(kwargs.get(keyword))
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        for each in mask.values() if isinstance(mask, dict) else [mask]:  # a dict: one for each kind of layer
            if each is not None and not (isinstance(each, Tensor) and each.dim() == 2 and bool(each.all())):
                raise ModelError(
                    "Padding and masks are not supported with CacheCraft's attention; "
                    "run each text by itself, unpadded."
                )

    hook = model.base_model.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _attention(
    module: nn.Module,
    query: Tensor,  # (B, H, N, D)
    key: Tensor,  # (B, G, N, D) with a cache of ours, which holds the others
    value: Tensor,  # (B, G, N, D)
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend; returns (B, N, H, D) as transformers expects, and no weights."""
    session = _SESSION.get()
    if session is None:
        raise ModelError("The model is set to CacheCraft's attention outside of `with attending(...)`.")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    softcap, window = kwargs.get("softcap"), kwargs.get("sliding_window")
    logsumexp: Tensor | None = None
    if session.turn is not None:
        output = session.turn.attend(layer, query, key, value, scale, softcap=softcap, window=window)
    elif isinstance(session.cache, CompressedCache):
        output = session.cache.attend(layer, query, scale, softcap=softcap, window=window)
    elif session.cache is not None:
        output = session.cache.attend(layer, query, scale, softcap)
    elif query.shape[2] == key.shape[2]:
        output, logsumexp = kernels.causal_attention(query, key, value, scale, softcap=softcap, window=window)
    else:
        raise ModelError("A cache was used that the surrounding `with attending(..., cache=...)` does not know.")
    if session.observer is not None:
        session.observer(LayerCall(layer, query, key, value, logsumexp, scale, softcap, window))
    return output.transpose(1, 2).contiguous(), None
