"""Bytes kept against bytes asked for, and the peak memory of an evaluation.

First one evaluation of eight policies × four ratios at 4k tokens runs in this process, with its resident memory
watched; then every built-in policy compresses a context at every ratio and the bytes of the cache so built are
compared with what the ratio asks for.
"""

from __future__ import annotations

import argparse
import resource
import sys
from typing import Any

from bench_report import BenchReport
from cold_run import cold_run
from peak_memory import PeakMemory
from samples import make_samples
from subject import EIGHT, FOUR_RATIOS, Model, add_model_options, load_model

from cachecraft.evaluation.cells import Budget, make_cells
from cachecraft.evaluation.selections import Selections
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import record
from cachecraft.policy.contract import builtin_policies
from cachecraft.runtime.gather import compressed_cache
from cachecraft.terminal import one_sentence

ALLOWED = 2e9  # bytes beside the model


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--task", default="ruler:niah_single_2", help="default: %(default)s")
    parser.add_argument("--length", type=int, default=4096, help="tokens of the evaluation (default: %(default)s)")
    parser.add_argument("--bytes-length", type=int, default=1024, help="tokens of the table (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(EIGHT), help="of the evaluation (default: %(default)s)")
    parser.add_argument("--ratios", default=",".join(map(str, FOUR_RATIOS)), help="default: %(default)s")
    return parser.parse_args()


def peak_of_process() -> int:
    """The operating system's own record of the largest resident size, from the start of the process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def report_peak(model: Model, report: BenchReport, options: argparse.Namespace) -> None:
    own = sum(p.numel() * p.element_size() for p in model.subject.structure.model.parameters())
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    loading = peak_of_process()
    rows, kept = [], []
    for scoring in ("answer", "likelihood"):
        with PeakMemory() as memory:
            cold_run(model.subject, options.task, options.policies.split(","), ratios, options.length, scoring)
        beside = memory.peak - own
        verdict = "under" if beside < ALLOWED else "OVER"
        rows.append(
            [
                f"{scoring}",
                f"{own / 1e9:.2f}",
                f"{memory.before / 1e9:.2f}",
                f"{memory.peak / 1e9:.2f}",
                f"{beside / 1e9:.2f}",
                f"{verdict} model + {ALLOWED / 1e9:.0f} GB",
            ]
        )
        kept.append({"scoring": scoring, "model": own, "before": memory.before, "peak": memory.peak})
    report.table(
        f"Resident memory of an evaluation, {options.length} tokens, {len(ratios) * len(options.policies.split(','))} "
        "cells, in GB",
        ["scoring", "model", "before", "peak", "peak less model", "verdict"],
        rows,
    )
    whole = peak_of_process()
    report.say(
        f"The operating system's record for the whole process, Python and libraries included: {whole / 1e9:.2f} GB "
        f"({loading / 1e9:.2f} GB after loading the model)."
    )
    report.keep("peak", {"runs": kept, "process": whole, "process_after_loading": loading})


def report_bytes(model: Model, report: BenchReport, options: argparse.Namespace) -> None:
    subject = model.subject
    (sample,) = make_samples(subject.tokenizer, [options.task], 1, options.bytes_length)
    trace = record(subject.structure, sample.context_ids)
    budgets = [Budget(ratio=float(ratio)) for ratio in options.ratios.split(",")]
    cells = make_cells(builtin_policies(), budgets, references=())
    layers = [(layer.keys, layer.values) for layer in trace.layers]
    by_policy: dict[str, list[str]] = {}
    kept: list[dict[str, Any]] = []
    exact = True
    with report.progress() as bar:
        job = bar.add_task("compressing", total=len(cells))
        for name in builtin_policies():
            mine = [cell for cell in cells if cell.policy is not None and cell.label == name]
            selections = Selections(subject, trace, mine, Stopwatch())
            for cell in mine:
                cache = compressed_cache(layers, [m.unsqueeze(0) for m in selections.masks(cell)], seen=trace.tokens)
                asked = cell.budget.entries(trace.tokens) * trace.bytes_per_entry
                exact &= cache.bytes == asked
                by_policy.setdefault(name, []).append(f"{cache.bytes:,} / {asked:,}")
                kept.append({"policy": name, "budget": cell.budget.label, "kept": cache.bytes, "asked": asked})
                bar.advance(job)
    report.table(
        f"Bytes of the compressed cache / bytes asked for, {trace.tokens} tokens "
        f"({trace.tokens * trace.bytes_per_entry:,} bytes in full)",
        ["policy", *[budget.label for budget in budgets]],
        [[name, *values] for name, values in by_policy.items()],
    )
    report.say("Every cache holds exactly the bytes asked for." if exact else "NOT every cache holds the bytes asked.")
    report.keep("bytes", kept)


def main() -> None:
    options = parse_options()
    model = load_model(options)
    report = BenchReport("memory", vars(options))
    report_peak(model, report, options)
    report_bytes(model, report, options)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
