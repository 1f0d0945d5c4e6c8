"""Runs the feed-forward layers of a long pass on some tokens at a time: the same numbers, in less memory and time.

Their wide intermediate results are the largest tensors of a prefill once the cache is evicted layer by layer; in slices
they stay small, and on a CPU near a core. Tokens do not depend on each other there, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cachecraft.runtime import compat

SLICE = 1024  # tokens at a time; fewer would multiply smaller, slower matrices


@contextmanager
def replaced(owner: nn.Module, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Have `around(original, …)` called instead of a method of one object while the block lasts."""
    original = getattr(owner, name)
    own = vars(owner).get(name)  # None unless another tool replaced the method of this object before

    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    method.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(owner, name, method)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextmanager
def token_slices(model: PreTrainedModel) -> Iterator[None]:
    """Run each feed-forward layer in slices of tokens while the block lasts; mixtures of experts stay as they are.

    To be entered inside `attending`, so that two threads never do it to one model at once.
    """
    with ExitStack() as stack:
        for layer in compat.decoder_layers(model):
            feed_forward = getattr(layer, "mlp", None)
            # Known by name, for lack of another sign that a module works on each token alone and returns a tensor.
            if isinstance(feed_forward, nn.Module) and type(feed_forward).__name__.endswith("MLP"):
                stack.enter_context(replaced(feed_forward, "forward", _in_slices))
        yield


def _in_slices(original: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Apply to (B, N, hidden)."""
    if hidden.dim() != 3 or hidden.shape[1] <= SLICE or torch.is_grad_enabled():
        return original(hidden)
    output = torch.empty_like(hidden)
    for start in range(0, hidden.shape[1], SLICE):
        output[:, start : start + SLICE] = original(hidden[:, start : start + SLICE])
    return output
