"""Ada-KV beside kvpress 0.5.5: the same entries? and how many bytes does each side hold afterwards?

Both sides prefill the same token ids in float32. Ours divides each layer's budget over its kv heads and stores what is
kept; the peer notes what its attention is not to see. Where scores lie within rounding of a layer's threshold, either
choice is right: such entries are near ties.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from bench_report import BenchReport
from peer_process import HERE, PeerError, peer_python, peer_ratio
from samples import Sample, make_samples, write_samples
from subject import Model, add_model_options, load_model
from torch import Tensor

from cachecraft.evaluation.traces import Trace, layer_features, record
from cachecraft.policy.contract import load_policy
from cachecraft.policy.decide import keep_count, score
from cachecraft.policy.division import Divider
from cachecraft.runtime.gather import compressed_cache
from cachecraft.terminal import one_sentence

METHODS = ("snapkv", "expected_attention")
NEAR = 1e-5  # distance to the threshold, relative to it


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--peer-python", type=Path, help="Python of an existing environment with kvpress 0.5.5")
    parser.add_argument("--methods", default=",".join(METHODS), help="default: %(default)s")
    parser.add_argument("--ratios", default="0.5,0.75,0.88", help="default: %(default)s")
    parser.add_argument("--tasks", default="ruler:niah_single_2,ruler:vt", help="default: %(default)s")
    parser.add_argument("--samples", type=int, default=1, help="items per task (default: %(default)s)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    return parser.parse_args()


def ours(model: Model, trace: Trace, method: str, keep: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each layer what is kept, (G, T) bool, and the scores, infinite where the policy protects."""
    policy = load_policy(method, allocation="adaptive")
    divider = Divider(policy, model.subject.structure.layers, [keep])
    for place, features in enumerate(layer_features(model.subject.structure, model.subject.tokenizer, trace)):
        (decision,) = divider.decide(place, features)
        scored = score(policy, features, torch.full((features.kv_heads,), keep, dtype=torch.int64))
        worth = scored.scores.double().clone()
        worth[:, : scored.first] = torch.inf
        worth[:, max(0, trace.tokens - scored.last) :] = torch.inf
        yield decision.mask, worth


def differences(mask: Tensor, worth: Tensor, peer: Tensor, sure: int) -> tuple[int, int]:
    """Entries that only one side keeps of a layer, and those of them that are near ties.

    A head's own threshold is that of its `sure` best, the layer's that of what competes beyond them.
    """
    order = worth.argsort(dim=-1, descending=True).argsort(dim=-1)
    rest = (order >= sure) & ~worth.isinf()
    layer = worth.masked_fill(~(mask & rest), torch.inf).min()
    own = worth.gather(-1, (order == sure - 1).int().argmax(dim=-1, keepdim=True))
    near = torch.zeros_like(mask)
    for threshold in (layer, own):
        # A threshold among what is protected is infinite, and nothing is near it.
        near |= threshold.isfinite() & ((worth - threshold).abs() <= NEAR * threshold.abs())
    differing = mask != peer
    return int(differing.sum()), int((differing & near).sum())


def peer_cells(model: Model, report: BenchReport, samples: list[Sample], cells: list[dict], python: Path) -> list[int]:
    """Let the peer measure; the bytes that it holds in each cell."""
    write_samples(report.folder / "samples.json", samples)
    request = report.folder / "request.json"
    told = {"model": str(model.folder), "samples": str(report.folder / "samples.json"), "folder": str(report.folder)}
    request.write_text(json.dumps(told | {"threads": torch.get_num_threads(), "cells": cells}))
    done = subprocess.run([python, HERE / "kvpress_ragged.py", request], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"The peer stopped: {done.stderr.strip().splitlines()[-1]}.")
    held: list[int] = json.loads((report.folder / "bytes.json").read_text())
    return held


def main() -> None:
    options = parse_options()
    python = peer_python(options.peer_python)
    model = load_model(options)
    report = BenchReport("ragged-memory", vars(options))
    samples = make_samples(model.subject.tokenizer, options.tasks.split(","), options.samples, options.length)
    cells = []
    for number, sample in enumerate(samples):
        tokens = len(sample.context_ids)
        for ratio in map(float, options.ratios.split(",")):
            keep = keep_count(tokens, ratio=ratio)
            at = {"sample": number, "asked": ratio, "keep": keep, "ratio": peer_ratio(tokens, keep)}
            cells += [at | {"press": method} for method in options.methods.split(",")]
    held = peer_cells(model, report, samples, cells, python)
    rows: dict[tuple[str, float], list[int]] = {}
    for number, (cell, theirs) in enumerate(zip(cells, held, strict=True)):
        trace = record(model.subject.structure, samples[cell["sample"]].context_ids)
        peer = torch.from_numpy(np.load(report.folder / f"{number}.npz")["masks"])
        masks, found = [], [0, 0, 0, 0]
        for layer, (mask, worth) in enumerate(ours(model, trace, cell["press"], cell["keep"])):
            differing, near = differences(mask, worth, peer[layer], max(1, int(0.2 * cell["keep"])))
            found = [a + b for a, b in zip(found, (int(mask.sum()), differing, near, 1), strict=True)]
            masks.append(mask.unsqueeze(0))
        cache = compressed_cache([(each.keys, each.values) for each in trace.layers], masks, seen=trace.tokens)
        blocks = [block for layer in cache.compressed for block in layer._blocks]
        stored = sum(part.untyped_storage().nbytes() for block in blocks for part in (block.keys, block.values))
        row = rows.setdefault((cell["press"], cell["asked"]), [0] * 7)
        added = (*found, stored, theirs, trace.full_bytes)
        rows[cell["press"], cell["asked"]] = [a + b for a, b in zip(row, added, strict=True)]
    report.table(
        "Ada-KV: entries kept by both sides, and bytes of keys and values held after the prefill",
        ["policy, ratio", "entries", "differing", "of them near ties", "ours, % of full", "kvpress, % of full"],
        [
            [f"{name}, {ratio:g}", kept, differing, near, f"{100 * own / full:.1f}", f"{100 * theirs / full:.1f}"]
            for (name, ratio), (kept, differing, near, _, own, theirs, full) in rows.items()
        ],
    )
    report.keep("rows", [[*key, *row] for key, row in rows.items()])
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
