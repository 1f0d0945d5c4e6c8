"""Where an evaluation's time goes, beside the arithmetic limit of this machine.

Evaluates eight policies × four ratios (32 cells) from one cold prefill, at two lengths and with two scorings. The
limit is the operations of one prefill and of every candidate's question and answer tokens, divided by the best rate
of matrix products at the model's own shapes, measured before and after each run.
"""

from __future__ import annotations

import argparse
from typing import Any

from arithmetic import Counts, matrix_rate
from bench_report import BenchReport
from cold_run import ColdRun, cold_run, warm_up
from samples import Sample, make_samples
from subject import EIGHT, FOUR_RATIOS, Model, add_model_options, load_model

from cachecraft.evaluation.cells import Scoring
from cachecraft.policy.decide import keep_count
from cachecraft.tasks.prompt import token_ids

ROWS = (256, 1024)  # tokens at a time at which the rate is measured
GOALS = "Goals: at least 50 % of the limit reached, everything else at most 10 %."


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--task", default="ruler:niah_single_2", help="default: %(default)s")
    parser.add_argument("--lengths", default="1024,4096", help="tokens of an item (default: %(default)s)")
    parser.add_argument("--scoring", default="answer,likelihood", help="default: %(default)s")
    parser.add_argument("--policies", default=",".join(EIGHT), help="default: %(default)s")
    parser.add_argument("--ratios", default=",".join(map(str, FOUR_RATIOS)), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, of which the fastest is shown")
    return parser.parse_args()


def operations(model: Model, sample: Sample, run: ColdRun, scoring: Scoring) -> tuple[int, int]:
    """Least operations of a run: those of the prefill, and those of all candidates' new tokens."""
    counts = Counts.of(model.subject.structure)
    tokens, prompt = len(sample.context_ids), len(sample.follow_ids)
    target = len(token_ids(model.subject.tokenizer, sample.item.reference_texts[0]))
    candidates = 0
    for result in run.results:
        asked = target
        if scoring == "answer":  # the stop token of an answer that ended early was asked for too
            asked = min(int(result.detail["new_tokens"]) + 1, sample.item.max_new_tokens)
        keep = keep_count(tokens, ratio=float(result.budget))
        candidates += counts.candidate(keep, prompt + asked - 1, asked)
    return counts.prefill(tokens), candidates


def measure(model: Model, length: int, scoring: Scoring, options: argparse.Namespace) -> dict[str, Any]:
    """The fastest of some cold runs, and its limit."""
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    (sample,) = make_samples(model.subject.tokenizer, [options.task], 1, length)
    structure = model.subject.structure
    rate = matrix_rate(structure, ROWS)
    runs = []
    for _ in range(options.repeats):
        runs.append(cold_run(model.subject, options.task, options.policies.split(","), ratios, length, scoring))
        rate = max(rate, matrix_rate(structure, ROWS))
    run = min(runs, key=lambda each: each.seconds)
    prefill, candidates = operations(model, sample, run, scoring)
    return {
        "length": length,
        "scoring": scoring,
        "cells": len(run.results),
        "wall": run.seconds,
        "all_walls": [each.seconds for each in runs],
        "cpu": run.cpu_seconds,
        "phases": run.phases,
        "everything_else": run.everything_else,
        "rate": rate,
        "prefill_operations": prefill,
        "candidate_operations": candidates,
        "limit": (prefill + candidates) / rate,
    }


def row(found: dict[str, Any]) -> list[str]:
    """One line of the table: seconds, and shares of the wall time."""
    wall, rate = found["wall"], found["rate"]

    def part(seconds: float, limit: float | None = None) -> str:
        beside = "" if limit is None else f" / {limit:.2f}"
        return f"{seconds:.2f}{beside} ({seconds / wall:.0%})"

    phases = found["phases"]
    return [
        f"{found['length']}, {found['scoring']}",
        f"{wall:.2f}",
        part(phases["prefill"], found["prefill_operations"] / rate),
        part(phases["features"]),
        part(phases["answers"], found["candidate_operations"] / rate),
        part(found["everything_else"]),
        f"{rate / 1e9:.0f}",
        f"{found['limit']:.2f}",
        f"{found['limit'] / wall:.0%}",
    ]


def main() -> None:
    options = parse_options()
    model = load_model(options)
    report = BenchReport("efficiency", vars(options))
    lengths = [int(length) for length in options.lengths.split(",")]
    scorings: list[Scoring] = options.scoring.split(",")
    found = []
    warm_up(model.subject)
    with report.progress() as bar:
        job = bar.add_task("measuring", total=len(lengths) * len(scorings))
        for length in lengths:
            for scoring in scorings:
                bar.update(job, description=f"{length} tokens, {scoring}")
                found.append(measure(model, length, scoring, options))
                bar.advance(job)
    report.table(
        f"Seconds of one cold run of {found[0]['cells']} cells / arithmetic limit (share of the run)",
        ["tokens, scoring", "wall", "prefill", "features", "answers", "everything else", "Gop/s", "limit", "reached"],
        [row(each) for each in found],
    )
    report.say(GOALS)
    report.keep("runs", found)
    report.close()


if __name__ == "__main__":
    main()
