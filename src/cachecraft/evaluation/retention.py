"""What a selection kept of each segment of a prompt: shares by name, and whether what matters survived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cachecraft.tasks.prompt import Prompt
from cachecraft.tasks.spans import token_spans
from cachecraft.tasks.task import Item

VITAL = ("needle", "answer")  # segments that an answer cannot do without
QUESTION, REST = "question", "rest"


def compressed_segments(tokenizer: Any, item: Item, prompt: Prompt, tokens: int) -> dict[str, Tensor]:
    """The entries of each segment among the compressed ones.

    Args:
        tokenizer: The model's tokenizer.
        item: The item.
        prompt: The item, rendered.
        tokens: T, how many tokens of the prompt are compressed; with the question they are more than the context's.

    Returns:
        For each name (n,) int64 places below T: those of the item's segments, ``template``, ``question`` where it is
        compressed, and ``rest`` for what belongs to none.
    """
    places = {name: [place for place in own if place < tokens] for name, own in token_spans(tokenizer, item).items()}
    places[QUESTION] = list(range(len(prompt.context_ids), tokens))
    named = {place for own in places.values() for place in own}
    places[REST] = [place for place in range(tokens) if place not in named]
    return {name: torch.tensor(own, dtype=torch.int64) for name, own in places.items() if own}


def retention(masks: Sequence[Tensor], segments: dict[str, Tensor]) -> dict[str, Any]:
    """What a selection kept, small enough to be stored with each result.

    Args:
        masks: For each layer (G, T) bool.
        segments: From `compressed_segments`.

    Returns:
        ``segments``: for each name its number of tokens and the share of them kept, averaged over layers and kv heads;
        ``survived``: for each vital name whether in every layer each of its tokens was kept by at least one kv head;
        ``whole``: for each vital name the share of all kv heads, over all layers, that kept every one of its tokens.
    """
    kept = torch.stack([mask.cpu() for mask in masks])  # (L, G, T)
    share = kept.float().mean(dim=(0, 1))
    vital = {name: kept[:, :, segments[name]] for name in VITAL if name in segments}
    return {
        "segments": {
            name: {"tokens": len(own), "kept": round(float(share[own].mean()), 5)} for name, own in segments.items()
        },
        "survived": {name: bool(own.any(dim=1).all()) for name, own in vital.items()},
        "whole": {name: round(float(own.all(dim=2).float().mean()), 5) for name, own in vital.items()},
    }
