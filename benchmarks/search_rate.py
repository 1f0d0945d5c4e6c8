"""How many evaluations a second a search makes: one is a candidate on a recorded item at one ratio.

Traces are warm. Candidates are seeds of a search, spread over all of them; the time holds what the search does for
each: choosing, in a sandbox for each thread, and the model's pass over the question's and the answer's tokens. Printed
beside the machine's arithmetic limit for those tokens. With `--dtype bfloat16` the rank agreement with float32 is
printed, too.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from arithmetic import Counts, matrix_rate
from bench_report import BenchReport
from scipy import stats
from subject import add_model_options

from cachecraft import api
from cachecraft.evolution.arena import Arena
from cachecraft.evolution.proposers.mutate import seed_proposals
from cachecraft.evolution.settings import DiscoverySettings
from cachecraft.models import load
from cachecraft.sandbox import Ask, Limits, Program, Sandbox, shared_out
from cachecraft.tasks.registry import load_tasks
from cachecraft.terminal import one_sentence

TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_single_3,ruler:niah_multikey_1"
ROWS = (256, 1024)  # tokens at a time at which the machine's rate is measured
GOAL = 8  # evaluations a second on 2 cores


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--tasks", default=TASKS, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--ratios", default="0.75,0.88", help="default: %(default)s")
    parser.add_argument("--candidates", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16 (default: %(default)s)")
    return parser.parse_args()


@dataclass
class Rate:
    """What was measured: seconds of choosing and of the model's passes, evaluations, tokens, and every likelihood."""

    choosing: float = 0.0
    passes: float = 0.0
    evaluations: int = 0
    tokens: int = 0
    operations: int = 0
    found: list[float] = field(default_factory=list)


def _spread(count: int, wanted: int) -> list[int]:
    """Places spread evenly over `count`."""
    return sorted({place * count // wanted for place in range(wanted)})


def measure(options: argparse.Namespace, dtype: str, folder: Path) -> tuple[Rate, float]:
    """One item of each task, all candidates at all ratios; the rate and the machine's operations per second."""
    loaded = load(options.model, dtype=dtype, device="cpu", threads=options.threads)
    subject = api.subject_of(loaded)
    settings = DiscoverySettings(
        tasks=tuple(options.tasks.split(",")),
        ratios=tuple(float(ratio) for ratio in options.ratios.split(",")),
        length=options.length,
    )
    seeds = seed_proposals(settings.interface, 0)
    programs = [Program(f"seed{place}", seeds[place].source) for place in _spread(len(seeds), options.candidates)]
    counts = Counts.of(subject.structure)
    machine = matrix_rate(subject.structure, ROWS)
    arena = Arena(subject, load_tasks(settings.tasks), settings, folder)
    items = arena.items(0, 1)
    rate = Rate()
    asks = [Ask(item.name, item.keeps) for item in items]
    with ExitStack() as stack:
        boxes = [stack.enter_context(Sandbox(Limits(seconds=settings.seconds))) for _ in range(torch.get_num_threads())]
        for box, item in itertools.product(boxes, items):
            box.load(item.name, item.shared)
        began = time.perf_counter()
        verdicts = list(shared_out(boxes, programs, lambda box, program: box.run(program, asks)))
        rate.choosing = time.perf_counter() - began
    for place, item in enumerate(items):
        masks = [verdict.choices[place].masks(ratio) for verdict in verdicts for ratio in range(len(item.keeps))]
        began = time.perf_counter()
        rate.found += [each.mean_logprob for each in arena.likelihoods(item, masks)]
        rate.passes += time.perf_counter() - began
        rate.evaluations += len(masks)
        forwarded = len(item.follow) + len(item.target) - 1
        rate.tokens += len(masks) * (forwarded + 1)
        rate.operations += sum(
            len(programs) * counts.candidate(keep, forwarded, len(item.target)) for keep in item.keeps
        )
    return rate, max(machine, matrix_rate(subject.structure, ROWS))


def main() -> None:
    options = parse_options()
    report = BenchReport("search-rate", vars(options))
    rows, found = [], {}
    for dtype in dict.fromkeys(["float32", options.dtype]):
        with tempfile.TemporaryDirectory() as folder:
            rate, machine = measure(options, dtype, Path(folder) / "traces")
        found[dtype] = rate.found
        seconds = rate.choosing + rate.passes
        rows.append(
            [
                dtype,
                f"{rate.evaluations}",
                f"{rate.tokens / rate.evaluations:.0f}",
                f"{1000 * rate.choosing / rate.evaluations:.0f}",
                f"{1000 * rate.passes / rate.evaluations:.0f}",
                f"{rate.evaluations / seconds:.1f}",
                f"{machine / 1e9:.0f}",
                f"{machine * rate.evaluations / rate.operations:.1f}",
            ]
        )
        report.keep(dtype, {"rate": rate.evaluations / seconds, "limit": machine * rate.evaluations / rate.operations})
    report.table(
        f"Evaluations of candidates at {options.length} tokens, traces warm; goal: at least {GOAL} a second on 2 cores",
        ["dtype", "evaluations", "tokens", "choosing, ms", "passes, ms", "a second", "Gop/s", "limit, a second"],
        rows,
    )
    if len(found) > 1:
        first, second = found.values()
        report.say(
            f"Rank correlation of {options.dtype} with float32: {stats.spearmanr(first, second).statistic:.3f}; mean "
            f"absolute difference {sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first):.3f} nats."
        )
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
