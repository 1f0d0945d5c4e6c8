"""A dense reference that hides evicted entries with masks, and what the runtime's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from cachecraft.runtime import compat
from cachecraft.runtime.attention import LayerCall, attending
from cachecraft.runtime.cache import CompressedCache
from cachecraft.runtime.features import observe_prefill
from cachecraft.runtime.structure import ModelStructure

Dense = list[tuple[Tensor, Tensor]]


def random_ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 200, (count,), generator=generator).tolist()


def dense_layers(model: PreTrainedModel, ids: Sequence[int]) -> Dense:
    """Keys and values, (G, T, D) each, of every layer."""
    layers: Dense = []

    def keep(call: LayerCall) -> None:
        layers.append((call.keys[0].contiguous(), call.values[0].contiguous()))

    observe_prefill(ModelStructure.of(model, force=True), ids, keep)
    return layers


def visible_logits(model: PreTrainedModel, ids: Sequence[int], visible: Sequence[Tensor]) -> Tensor:
    """Logits (S, vocabulary) of one dense pass in which each token sees what it is allowed to.

    `visible` holds for each layer and kv head which entries each token sees, (G, S, S) bool; a sliding window hides
    what it hides on top of that.
    """
    away = torch.arange(len(ids)).unsqueeze(1) - torch.arange(len(ids))

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Any:
        group = query.shape[1] // key.shape[1]
        allowed = visible[module.layer_idx].repeat_interleave(group, dim=0)  # (H, S, S)
        allowed = allowed & (away < (more.get("sliding_window") or len(ids)))
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        logits = query @ key.transpose(2, 3) * more["scaling"]
        if more.get("softcap") is not None:
            logits = (logits / more["softcap"]).tanh() * more["softcap"]
        weights = logits.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), None

    with attending_by(model, attention), torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


@contextmanager
def attending_by(model: PreTrainedModel, function: Callable[..., Any]) -> Iterator[None]:
    """Let a function of the test's own do the model's attention, as transformers calls it."""
    AttentionInterface.register("reference", function)
    before = model.config._attn_implementation
    model.config._attn_implementation = "reference"
    try:
        yield
    finally:
        model.config._attn_implementation = before


def masked_logits(model: PreTrainedModel, ids: Sequence[int], new: Sequence[int], masks: Sequence[Tensor]) -> Tensor:
    """Logits (N, vocabulary) of the new tokens in one dense pass in which they do not see evicted entries.

    `masks` holds for each layer which of the context's entries each kv head keeps, (G, T) bool.
    """
    tokens, total = len(ids), len(ids) + len(new)
    visible = torch.ones(total, total, dtype=torch.bool).tril().repeat(len(masks), masks[0].shape[0], 1, 1)
    for allowed, kept in zip(visible, masks, strict=True):
        allowed[:, tokens:, :tokens] &= kept[:, None, :]
    return visible_logits(model, [*ids, *new], list(visible))[tokens:]


def compressed_logits(
    model: PreTrainedModel, cache: CompressedCache, new: Sequence[int], steps: Sequence[int] | None = None
) -> Tensor:
    """Logits (B, N, vocabulary) of new tokens over a cache, fed in pieces of these sizes, by default all at once."""
    rows, position, found, at = cache.compressed[0].rows, cache.get_seq_length(), [], 0
    with torch.no_grad(), attending(model, cache=cache):
        for size in steps or [len(new)]:
            piece = torch.tensor([list(new[at : at + size])] * rows)
            positions = torch.arange(position + at, position + at + size).unsqueeze(0)
            found.append(compat.logits(model, compat.hidden_states(model, piece, positions, cache)))
            at += size
    return torch.cat(found, dim=1)


def random_mask(heads: int, tokens: int, counts: Sequence[int], generator: torch.Generator) -> Tensor:
    """(G, T) bool with the given row sums."""
    mask = torch.zeros(heads, tokens, dtype=torch.bool)
    for head, count in enumerate(counts):
        mask[head, torch.randperm(tokens, generator=generator)[:count]] = True
    return mask


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    """The functions above, for test files, which cannot import this one."""
    return SimpleNamespace(
        random_ids=random_ids,
        dense_layers=dense_layers,
        masked_logits=masked_logits,
        visible_logits=visible_logits,
        compressed_logits=compressed_logits,
        attending_by=attending_by,
        random_mask=random_mask,
    )


@pytest.fixture
def untouched(tiny_model: PreTrainedModel) -> Callable[[], bool]:
    """Tells whether the model is as it was: attention setting, hooks, attributes."""

    def state() -> tuple[object, ...]:
        hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in tiny_model.modules()]
        own = [sorted(vars(module)) for module in tiny_model.modules()]
        return tiny_model.config._attn_implementation, hooks, own

    before = state()
    return lambda: state() == before
