"""One prefill in a process of its own, for overhead.py: the peak of its memory and what is held after it, as JSON.

A fresh process, because the memory that an allocator keeps after one prefill would hide what the next one needs.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peak_memory import PeakMemory
from subject import Model, add_model_options, load_model
from transformers import DynamicCache

from cachecraft.runtime import compat
from cachecraft.runtime.compress import compress
from cachecraft.tasks.registry import load_tasks
from cachecraft.terminal import one_sentence

TASK = "ruler:niah_single_2"


def prompt(model: Model, length: int) -> torch.Tensor:
    """(1, `length`) token ids of an item's context."""
    item = load_tasks([TASK])[0].item(0, split="test", length=length + 400, seed=0, tokenizer=model.subject.tokenizer)
    ids = model.subject.tokenizer(item.context, add_special_tokens=False)["input_ids"]
    return torch.tensor([ids[:length]])


def prefill(model: Model, ids: torch.Tensor) -> Any:
    """Read a prompt as `generate` does: a cache is filled, and the logits of the last token only are computed."""
    transformer = model.subject.structure.model
    cache = DynamicCache(config=transformer.config)
    with torch.no_grad():
        transformer(ids, use_cache=True, logits_to_keep=1, **{compat.cache_keyword(transformer): cache})
    return cache


def held_bytes(cache: Any) -> int:
    """Bytes of a cache's keys and values, a compressed one's or not."""
    stored = [getattr(layer, "bytes", None) for layer in cache.layers]
    if all(each is not None for each in stored):
        return sum(stored)
    return sum(side.numel() * side.element_size() for layer in cache.layers for side in (layer.keys, layer.values))


def around(model: Model, policy: str, ratio: float) -> Callable[[], AbstractContextManager[Any]]:
    """What a prefill runs in: nothing at all, or compression with a policy."""
    if policy == "plain":
        return nullcontext
    return lambda: compress(model.subject.structure.model, policy=policy, ratio=ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_options(parser)
    parser.add_argument("--policy", default="plain", help="a policy, or plain (default: %(default)s)")
    parser.add_argument("--ratio", type=float, default=0.88, help="share to evict (default: %(default)s)")
    parser.add_argument("--length", type=int, default=4096, help="tokens (default: %(default)s)")
    options = parser.parse_args()
    model = load_model(options)
    ids = prompt(model, options.length)
    block = around(model, options.policy, options.ratio)
    with block():
        prefill(model, ids[:, :256])  # libraries allocate their own on first use
    gc.collect()
    with PeakMemory() as memory, block():
        cache = prefill(model, ids)
    print(json.dumps({"peak": memory.peak - memory.before, "cache": held_bytes(cache)}))


if __name__ == "__main__":
    with one_sentence():
        main()
