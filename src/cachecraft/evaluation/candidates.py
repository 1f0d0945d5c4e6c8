"""Runs tokens over the compressed caches of many candidates as one packed pass: what answers and likelihoods share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachecraft.evaluation.traces import Trace
from cachecraft.runtime import compat
from cachecraft.runtime.attention import Observer, attending
from cachecraft.runtime.packed import PackedCache
from cachecraft.runtime.shared import SharedContext
from cachecraft.runtime.structure import ModelStructure

# For each layer the kept entries, (G, T) bool, on the CPU whatever the model's device: they are stored, counted and
# united, none of which is worth a wait for a device. Who makes one of a policy's decision, whose mask is where the
# layer is, moves it; keys, values and what indexes them stay on the model's device.
Selection = Sequence[Tensor]

PASS_TOKENS = 512  # tokens of prompts run at a time: enough to multiply well, few enough to stay in the CPU's cache


def shared(trace: Trace, selections: Sequence[Selection]) -> SharedContext:
    """A trace as the context that candidates share."""
    return SharedContext([(layer.keys, layer.values) for layer in trace.layers], selections)


def run(
    structure: ModelStructure,
    cache: PackedCache,
    feeds: Sequence[Sequence[int]],
    firsts: Sequence[int],
    observer: Observer | None = None,
) -> Tensor:
    """One forward pass of each row's new tokens.

    Args:
        structure: The model's structure.
        cache: The rows.
        feeds: The new tokens of each row; a row may have none.
        firsts: Position of each row's first new token.
        observer: Called with what each layer's attention was given.

    Returns:
        (M, hidden) final states of all new tokens, row after row.
    """
    cache.begin([len(feed) for feed in feeds])
    ids = [token for feed in feeds for token in feed]
    positions = [first + i for feed, first in zip(feeds, firsts, strict=True) for i in range(len(feed))]
    device = structure.model.device
    with torch.no_grad(), attending(structure.model, cache=cache, observer=observer):
        hidden = compat.hidden_states(
            structure.model, torch.tensor([ids], device=device), torch.tensor([positions], device=device), cache
        )
    return hidden[0]
