"""Decode time over a ragged cache against a uniform cache of the same bytes; the target on a CPU is at most 1.3 times.

Both caches are cut from one prefill. The ragged one gives every kv head of every layer a length of its own (drawn
around the average), which is the hardest case: no two heads share a buffer. Steps of both take turns; medians count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from bench_report import BenchReport
from samples import make_samples
from subject import Model, add_model_options, load_model
from torch import Tensor

from cachecraft.evaluation.traces import Trace, record
from cachecraft.policy.allocation import apportion
from cachecraft.policy.decide import keep_count
from cachecraft.runtime import compat
from cachecraft.runtime.attention import attending
from cachecraft.runtime.cache import CompressedCache
from cachecraft.runtime.gather import compressed_cache
from cachecraft.terminal import one_sentence

TARGET = 1.3


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--lengths", default="1024", help="tokens, comma-separated (default: %(default)s)")
    parser.add_argument("--ratios", default="0.5,0.88", help="default: %(default)s")
    parser.add_argument("--rows", default="1,4", help="batch sizes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=64, help="new tokens of each cache (default: %(default)s)")
    return parser.parse_args()


def masks(trace: Trace, keep: int, rows: int, *, ragged: bool) -> list[Tensor]:
    """For each layer (B, G, T) bool with the same total: all heads alike, or each with a length of its own."""
    layers, heads = len(trace.layers), trace.layers[0].keys.shape[0]
    chance = torch.Generator().manual_seed(0)
    shares = (0.2 + 1.6 * torch.rand(layers * rows * heads, generator=chance)).tolist()
    counts = apportion(shares if ragged else [1.0] * len(shares), keep * len(shares), 1, trace.tokens)
    order = torch.rand(layers, rows, heads, trace.tokens, generator=chance).argsort(dim=-1).argsort(dim=-1)
    return list((order < torch.tensor(counts).view(layers, rows, heads, 1)).unbind())


def step(model: Model, cache: CompressedCache, token: Tensor, position: int) -> tuple[Tensor, float]:
    """One greedy token of every row, and its seconds."""
    inner = model.subject.structure.model
    began = time.perf_counter()
    with torch.no_grad(), attending(inner, cache=cache):
        hidden = compat.hidden_states(inner, token, torch.tensor([[position]]), cache)
        token = compat.logits(inner, hidden[:, -1:]).argmax(dim=-1)
    return token, time.perf_counter() - began


def measure(model: Model, trace: Trace, keep: int, rows: int, steps: int) -> tuple[list[float], list[float], int, int]:
    """Seconds of each step over the uniform and the ragged cache, and the bytes that each holds before."""
    caches = []
    for ragged in (False, True):
        chosen = masks(trace, keep, rows, ragged=ragged)
        made = compressed_cache([(each.keys, each.values) for each in trace.layers], chosen, seen=trace.tokens)
        caches.append(made)
    held = [cache.bytes for cache in caches]
    forks = [cache.fork(steps + 4) for cache in caches]
    tokens = [torch.full((rows, 1), trace.ids[-1])] * 2
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(steps + 4):
        for which in (0, 1) if number % 2 else (1, 0):
            tokens[which], spent = step(model, forks[which], tokens[which], trace.tokens + number)
            if number >= 4:  # the first ones warm up
                seconds[which].append(spent)
    return seconds[0], seconds[1], held[0], held[1]


def row_of(name: str, found: tuple[Sequence[float], Sequence[float], int, int]) -> list[str]:
    """A line of the table."""
    uniform, ragged, own, other = found
    times = statistics.median(ragged) / statistics.median(uniform)
    held = f"{own / 1e6:.1f} / {other / 1e6:.1f}"
    spent = [f"{1000 * statistics.median(each):.1f}" for each in (uniform, ragged)]
    return [name, held, *spent, f"{times:.2f}", "yes" if times <= TARGET else "no"]


def main() -> None:
    options = parse_options()
    model = load_model(options)
    report = BenchReport("ragged-decode", vars(options))
    lines, kept = [], []
    for length in map(int, options.lengths.split(",")):
        (sample,) = make_samples(model.subject.tokenizer, ["ruler:niah_single_2"], 1, length)
        trace = record(model.subject.structure, sample.context_ids)
        for ratio in map(float, options.ratios.split(",")):
            for rows in map(int, options.rows.split(",")):
                found = measure(model, trace, keep_count(trace.tokens, ratio=ratio), rows, options.steps)
                lines.append(row_of(f"{length} tokens, ratio {ratio:g}, {rows} rows", found))
                kept.append({"length": length, "ratio": ratio, "rows": rows, "uniform": found[0], "ragged": found[1]})
    report.table(
        f"Decoding, median of {options.steps} steps",
        ["cache", "MB uniform / ragged", "uniform, ms", "ragged, ms", "times", f"at most {TARGET}"],
        lines,
    )
    report.keep("steps", kept)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
