"""The attention function that CacheCraft registers with transformers, and the `with` that switches a model to it.

It does three things that the stock functions do not: it shows an observer the post-RoPE queries, keys and values
of every layer; it builds its causal mask from the lengths that the cache holds, so that layers, rows and heads may
hold different numbers of entries; and it runs many candidates' caches as one packed batch.
It does not decide what is kept: see `cachecraft.policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime import compat
from cachecraft.runtime.cache import CompressedCache
from cachecraft.runtime.packed import PackedCache

ATTENTION_NAME = "cachecraft"


@dataclass(frozen=True)
class LayerCall:
    """What one layer's attention was called with.

    Attributes:
        layer: Index of the layer.
        queries: (B, H, N, D) post-RoPE queries of the new tokens (packed: one row for all candidates).
        keys: (B, G, S, D) post-RoPE keys that they attend to, the new tokens' included.
        values: (B, G, S, D).
        logsumexp: (B, H, N) float32 of the scaled causal logits, or None where the kernel does not give it.
    """

    layer: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    logsumexp: Tensor | None


Observer = Callable[[LayerCall], None]


@dataclass(frozen=True)
class _Session:
    """What the attention function needs to know during one `with attending(...)`."""

    cache: CompressedCache | PackedCache | None
    observer: Observer | None


_SESSION: ContextVar[_Session | None] = ContextVar("cachecraft_attention", default=None)


@contextmanager
def attending(
    model: PreTrainedModel, *, cache: CompressedCache | PackedCache | None = None, observer: Observer | None = None
) -> Iterator[None]:
    """Run `model` with CacheCraft's attention inside the block; the model's own setting returns afterwards.

    Args:
        model: The model; its attention setting is restored whatever happens inside.
        cache: The compressed cache that calls inside the block will use, if any.
        observer: Called once per layer and forward pass with a `LayerCall`.

    Raises:
        ModelError: The model asks for soft-capping or a sliding window, which this function does not do yet.
    """
    compat.register_attention(ATTENTION_NAME, _attention)
    before = model.config._attn_implementation
    token = _SESSION.set(_Session(cache, observer))
    try:
        model.config._attn_implementation = ATTENTION_NAME
        yield
    finally:
        model.config._attn_implementation = before
        _SESSION.reset(token)


def _attention(
    module: nn.Module,
    query: Tensor,  # (B, H, N, D)
    key: Tensor,  # (B, G, S, D), the new tokens last
    value: Tensor,  # (B, G, S, D)
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend; returns (B, N, H, D) as transformers expects, and no weights."""
    session = _SESSION.get()
    if session is None:
        raise ModelError("The model is set to CacheCraft's attention outside of `with attending(...)`.")
    for unsupported in ("softcap", "sliding_window"):
        if kwargs.get(unsupported) is not None:
            raise ModelError(f"{type(module).__name__} uses {unsupported}, which is not supported yet.")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    logsumexp: Tensor | None = None
    if isinstance(session.cache, PackedCache):
        output = session.cache.attend(layer, query, scale)
    elif session.cache is not None:
        output = session.cache.attend(layer, query, key, value, scale)
    elif query.shape[2] == key.shape[2]:
        output, logsumexp = compat.fused_causal_attention(query, key, value, scale)
    else:
        raise ModelError("A cache was used that the surrounding `with attending(..., cache=...)` does not know.")
    if session.observer is not None:
        session.observer(LayerCall(layer, query, key, value, logsumexp))
    return output.transpose(1, 2).contiguous(), None
