"""The peer's side of ragged_memory.py: Ada-KV in kvpress, in the peer's own environment.

`python kvpress_ragged.py REQUEST.json` prefills each sample once for every press and ratio, and writes which entries
the attention will not see, how the press scored them, and the bytes of keys and values in the cache. It imports nothing
of CacheCraft.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kvpress import AdaKVPress
from kvpress_presses import PRESSES
from transformers import AutoModelForCausalLM, DynamicCache


def measure(model: Any, ids: list[int], name: str, ratio: float) -> tuple[dict[str, np.ndarray], int]:
    """Masks and scores, (L, G, T), and the bytes that the cache holds after compression."""
    inner = PRESSES[name](compression_ratio=ratio)
    press, scores = AdaKVPress(inner), []
    original = inner.score

    def noting(*given: Any) -> torch.Tensor:
        found = original(*given)
        scores.append(found[0].clone())  # the press writes into what it is given
        return found

    inner.score = noting
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        model.model(torch.tensor([ids]), past_key_values=cache)
    masks = []
    for layer, found in zip(model.model.layers, scores, strict=True):
        mask = torch.ones(found.shape, dtype=torch.bool)
        _, heads, places = layer.self_attn.masked_key_indices
        mask[heads, places] = False
        masks.append(mask.numpy())
        layer.self_attn.masked_key_indices = None
    held = sum(part.untyped_storage().nbytes() for layer in cache.layers for part in (layer.keys, layer.values))
    return {"masks": np.stack(masks), "scores": np.stack([found.float().numpy() for found in scores])}, held


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(request["threads"])
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32, local_files_only=True).eval()
    samples = json.loads(Path(request["samples"]).read_text())
    held = []
    for number, cell in enumerate(request["cells"]):
        arrays, size = measure(model, samples[cell["sample"]]["context_ids"], cell["press"], cell["ratio"])
        np.savez(Path(request["folder"]) / f"{number}.npz", **arrays)
        held.append(size)
    (Path(request["folder"]) / "bytes.json").write_text(json.dumps(held))


if __name__ == "__main__":
    main()
