"""Side by side with kvpress: the same entries? the same answers? how many times faster?

Four parts: `parity` compares kept indices and greedy answers, `methods` scores and kept indices of further methods,
`speed` times eight policies at 1k and 4k tokens, and `apart` times observed_attention and h2o, which need attention
weights of the whole context. The peer runs in its own
environment and process; both sides use the same token ids, new-token limit, float32 and number of threads, and only
one computes at a time. Where the peer differs by design or by fault: docs/kvpress.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_report import BenchReport
from cold_run import cold_run, warm_up
from parity_part import COMPARED, open_samples, run_parity
from peer_process import PeerProcess, peer_python, peer_ratio
from samples import make_samples
from score_parity import run_methods
from speed_trial import Speed, measure_speed
from subject import EIGHT, FOUR_RATIOS, Model, add_model_options, load_model

from cachecraft.errors import CacheCraftError
from cachecraft.policy.decide import keep_count
from cachecraft.terminal import one_sentence

SPEED_TASKS = ("ruler:niah_single_2", "ruler:niah_multikey_1")
EIGHT_RATIOS = (0.3, 0.5, 0.6, 0.7, 0.75, 0.82, 0.88, 0.95)
APART = ("observed_attention", "h2o")  # kvpress has the first only
SPEED_COLUMNS = (
    *("tokens, cells, scoring", "ours", "kvpress", "cells timed", "new tokens timed/all"),
    *("times faster", "adjusted", "target"),
)
PARTS = ("parity", "methods", "speed", "apart")
TARGETS = {(32, False): (8, 10), (32, True): (16, 20), (64, True): (30, None)}  # (cells, long): answers, likelihood


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--peer-python", type=Path, help="Python of an existing environment with kvpress 0.5.5")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts to run (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(COMPARED), help="compared in `parity` (default: all six)")
    parser.add_argument("--ratios", default=",".join(map(str, FOUR_RATIOS)), help="default: %(default)s")
    parser.add_argument("--samples", type=int, default=1, help="`parity`, `methods`: items per task (default: 1)")
    parser.add_argument("--parity-length", type=int, default=1024, help="`parity`, `methods`: tokens (default: 1024)")
    parser.add_argument("--methods", default="", help="`methods`: only those whose label contains this text")
    parser.add_argument("--parity-tokens", type=int, help="`parity`: new tokens at most (default: the task's)")
    parser.add_argument("--lengths", default="1024,4096", help="`speed`, `apart`: tokens (default: %(default)s)")
    parser.add_argument("--timing-samples", type=int, default=2, choices=(1, 2), help="timed samples (default: 2)")
    parser.add_argument("--peer-cells", type=int, help="peer's cells to time (default: 16 below 2k, else 8)")
    parser.add_argument("--full", action="store_true", help="time every cell of the peer (hours)")
    return parser.parse_args()


def run_speed(model: Model, peer: PeerProcess, report: BenchReport, options: argparse.Namespace) -> None:
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    lengths = [int(length) for length in options.lengths.split(",")]
    lines, kept = [], []
    with report.progress() as bar:
        job = bar.add_task("speed", total=None)

        def tick(what: str) -> None:
            bar.update(job, advance=1, description=what)

        for length in lengths:
            tasks = SPEED_TASKS[: options.timing_samples]
            samples = list(enumerate(make_samples(model.subject.tokenizer, tasks, 1, length)))
            open_samples(model, peer, report, f"speed-{length}", [sample for _, sample in samples], options)
            warm_up(model.subject)
            count = None if options.full else options.peer_cells or (16 if length < 2048 else 8)
            grids = [ratios] if length < 2048 or len(ratios) != len(FOUR_RATIOS) else [ratios, EIGHT_RATIOS]
            for own in grids:
                likelihood = own is ratios
                speed = measure_speed(model.subject, peer, samples, (EIGHT, own), count, tick, likelihood=likelihood)
                lines += speed_lines(speed, length, samples[0][1].item.max_new_tokens)
                kept.append(speed_record(speed, length))
                report.keep("speed", kept)
    report.table(
        "Seconds per cell, cold (prefill included, model loading not); kvpress: mean of the cells timed",
        SPEED_COLUMNS,
        lines,
    )
    report.say(
        "The peer has no vnorm and no vk_ratio: it runs two small ScorerPress classes with these scores "
        "(benchmarks/kvpress_peer.py). It has no likelihood scoring either: that row is set against its answers."
    )
    report.say(
        "Adjusted: the peer's time brought to the mean new tokens of all cells, by a line through the timed ones."
    )
    same = sum(each["same_answers"] for each in kept)
    timed = sum(len(each["peer_seconds"]) for each in kept)
    report.say(f"Of the {timed} cells timed at the peer (random draws differ), {same} gave our answer word for word.")


def speed_lines(speed: Speed, length: int, limit: int) -> list[list[str]]:
    """Table rows of one grid."""
    goals = TARGETS.get((speed.cells, length >= 2048), (None, None))
    tokens = f"{sum(speed.peer_tokens) / len(speed.peer_tokens):.0f} / {speed.our_tokens(limit):.0f}"
    rows = []
    for scoring, runs, goal in (("answer", speed.answer, goals[0]), ("likelihood", speed.likelihood, goals[1])):
        if runs:
            own = speed.our_cell(runs)
            rows.append(
                [
                    f"{length}, {speed.cells}, {scoring}",
                    f"{own:.3f}",
                    f"{speed.peer_cell:.2f}",
                    f"{len(speed.peer_seconds)} of {speed.cells * len(speed.answer)}",
                    tokens,
                    f"{speed.peer_cell / own:.1f}",
                    f"{speed.peer_cell_adjusted(limit) / own:.1f}",
                    "—" if goal is None else f"{goal}",
                ]
            )
    return rows


def speed_record(speed: Speed, length: int) -> dict[str, Any]:
    """The timings in types that JSON has."""
    return {
        "length": length,
        "cells": speed.cells,
        "ours_answer": [[run.seconds, run.cpu_seconds, run.phases] for run in speed.answer],
        "ours_likelihood": [[run.seconds, run.cpu_seconds, run.phases] for run in speed.likelihood],
        "peer_seconds": speed.peer_seconds,
        "peer_cpu_seconds": speed.peer_cpu,
        "peer_tokens": speed.peer_tokens,
        "same_answers": speed.same_answers,
    }


def run_apart(model: Model, peer: PeerProcess, report: BenchReport, options: argparse.Namespace) -> None:
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    lines, kept = [], []
    for length in (int(text) for text in options.lengths.split(",")):
        (sample,) = make_samples(model.subject.tokenizer, SPEED_TASKS[:1], 1, length)
        open_samples(model, peer, report, f"apart-{length}", [sample], options)
        warm_up(model.subject)
        tokens = len(sample.context_ids)
        timed = ratios if options.full else ratios[:: 2 if length < 2048 else 4]
        with report.progress() as bar:
            job = bar.add_task(f"apart, {length} tokens", total=len(timed) + len(APART))
            spent = []
            for ratio in timed:
                keep = keep_count(tokens, ratio=ratio)
                spent.append(peer.cell(APART[0], peer_ratio(tokens, keep), 0).seconds)
                bar.advance(job)
            runs = []
            for policy in APART:
                runs.append(cold_run(model.subject, sample.item.task, [policy], ratios, length, "answer"))
                bar.advance(job)
        theirs = sum(spent) / len(spent)
        for policy, run in zip(APART, runs, strict=True):
            own = run.seconds / len(ratios)
            against = policy == APART[0]
            lines.append(
                [
                    f"{policy}, {length}",
                    f"{own:.2f}",
                    f"{theirs:.2f} ({len(spent)} cells)" if against else "not in kvpress",
                    f"{theirs / own:.1f}" if against else "—",
                ]
            )
            kept.append({"policy": policy, "length": length, "ours": own, "peer": spent if against else None})
    report.table(
        f"Apart: policies that need the whole attention; {len(ratios)} ratios, answers, seconds per cell",
        ["policy, tokens", "ours", "kvpress (eager attention)", "times faster"],
        lines,
    )
    report.keep("apart", kept)


def main() -> None:
    options = parse_options()
    parts: dict[str, Callable[[Model, PeerProcess, BenchReport, argparse.Namespace], None]] = {
        "parity": run_parity,
        "methods": run_methods,
        "speed": run_speed,
        "apart": run_apart,
    }
    wanted = options.parts.split(",")
    if unknown := set(wanted) - set(parts):
        raise CacheCraftError(f"There is no part {', '.join(sorted(unknown))}; choose among {', '.join(parts)}.")
    python = peer_python(options.peer_python)
    model = load_model(options)
    report = BenchReport("kvpress", vars(options))
    with PeerProcess(python, report.folder / "peer.log") as peer:
        for name in wanted:
            parts[name](model, peer, report, options)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
