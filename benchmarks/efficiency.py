"""Where an evaluation's time goes, beside the arithmetic limit of this machine.

Evaluates eight policies × four ratios (32 cells) from one cold prefill, at two lengths and with two scorings. The
limit is the operations of one prefill and of every candidate's question and answer tokens, divided by the best rate
of matrix products at the model's own shapes, measured before and after each run. The prompt pass (question, template
tail and answer prefix over all compressed caches) is timed on its own, the rest of the answers' time is decoding.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from arithmetic import Counts, matrix_rate
from bench_report import BenchReport
from cold_run import ColdRun, cold_run, warm_up
from samples import Sample, make_samples
from subject import EIGHT, FOUR_RATIOS, Model, add_model_options, load_model

from cachecraft.evaluation.answers import answer_ids
from cachecraft.evaluation.cells import Budget, Scoring, make_cells
from cachecraft.evaluation.selections import Selections
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import record
from cachecraft.policy.decide import keep_count
from cachecraft.tasks.prompt import token_ids
from cachecraft.terminal import one_sentence

ROWS = (256, 1024)  # tokens at a time at which the rate is measured
COLUMNS = (
    *("tokens, scoring", "wall", "prefill", "features", "prompt pass", "decoding"),
    *("everything else", "Gop/s", "limit", "reached"),
)
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


def operations(model: Model, sample: Sample, run: ColdRun, scoring: Scoring) -> dict[str, int]:
    """Least operations of a run: of the prefill, of all candidates' prompts, and of decoding their answers.

    Under likelihood scoring the reference is fed with the prompt, and nothing is decoded.
    """
    counts = Counts.of(model.subject.structure)
    tokens, prompt = len(sample.context_ids), len(sample.follow_ids)
    target = len(token_ids(model.subject.tokenizer, sample.item.reference_texts[0]))
    first = everything = 0
    for result in run.results:
        keep = keep_count(tokens, ratio=float(result.budget))
        if scoring == "likelihood":
            first += counts.candidate(keep, prompt + target - 1, target)
            everything = first
        else:  # the stop token of an answer that ended early was asked for too
            asked = min(int(result.detail["new_tokens"]) + 1, sample.item.max_new_tokens)
            first += counts.candidate(keep, prompt, 1)
            everything += counts.candidate(keep, prompt + asked - 1, asked)
    return {"prefill": counts.prefill(tokens), "prompt": first, "decoding": everything - first}


def prompt_seconds(model: Model, sample: Sample, options: argparse.Namespace) -> float:
    """Seconds of the first pass over all candidates' caches, the making of the caches included, on its own."""
    budgets = [Budget(ratio=float(ratio)) for ratio in options.ratios.split(",")]
    trace = record(model.subject.structure, sample.context_ids)
    cells = make_cells(options.policies.split(","), budgets, references=())
    selections = Selections(model.subject, trace, cells, Stopwatch())
    masks = [selections.masks(cell) for cell in cells]
    began = time.perf_counter()
    answer_ids(model.subject.structure, trace, masks, sample.follow_ids, 1)
    return time.perf_counter() - began


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
    answers = run.phases["answers"]
    prompt = answers if scoring == "likelihood" else min(answers, prompt_seconds(model, sample, options))
    least = operations(model, sample, run, scoring)
    return {
        "length": length,
        "scoring": scoring,
        "cells": len(run.results),
        "wall": run.seconds,
        "all_walls": [each.seconds for each in runs],
        "cpu": run.cpu_seconds,
        "phases": run.phases,
        "prompt": prompt,
        "decoding": answers - prompt,
        "everything_else": run.everything_else,
        "rate": rate,
        "operations": least,
        "limit": sum(least.values()) / rate,
    }


def row(found: dict[str, Any]) -> list[str]:
    """One line of the table: seconds, their limit where there is one, and shares of the wall time."""
    wall, rate, least = found["wall"], found["rate"], found["operations"]

    def part(seconds: float, operations: int | None = None) -> str:
        if operations == 0:
            return "—"
        beside = "" if operations is None else f" / {operations / rate:.2f}"
        return f"{seconds:.2f}{beside} ({seconds / wall:.0%})"

    return [
        f"{found['length']}, {found['scoring']}",
        f"{wall:.2f}",
        part(found["phases"]["prefill"], least["prefill"]),
        part(found["phases"]["features"]),
        part(found["prompt"], least["prompt"]),
        part(found["decoding"], least["decoding"]),
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
        COLUMNS,
        [row(each) for each in found],
    )
    report.say(GOALS)
    report.keep("runs", found)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
