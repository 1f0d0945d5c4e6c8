"""One table for each benchmark: 8 policies × ratios, the benchmark's metric with fidelity to the full cache beside it.

Items must fit the model: those longer than the length are left out and counted. Each benchmark has its own run folder,
runs/benchmarks-MODEL/NAME, and a repeated call goes on where an interrupted one stopped. Prints Markdown; the data are
the files that --data names (docs/tasks.md says which), and benchmarks without theirs are named as skipped.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from bench_report import RUNS, BenchReport
from readme_table import following
from subject import add_model_options

from cachecraft import api
from cachecraft.errors import CacheCraftError
from cachecraft.models import LoadedModel, load
from cachecraft.reporting.summary import CellSummary, Summary
from cachecraft.reporting.tables import number
from cachecraft.tasks import Sources, choose_tasks
from cachecraft.tasks.registry import FAMILIES
from cachecraft.terminal import one_sentence

POLICIES = ("streaming_llm", "knorm", "keydiff", "value_diversity", "vk_ratio", "snapkv", "tova", "frc")
RATIOS = (0.5, 0.75, 0.88)


@dataclass(frozen=True)
class Benchmark:
    """A family and how it is measured: the length, the regime, and the split that is the published set."""

    family: str
    length: int
    regime: str = "agnostic"
    split: str = "all"


BENCHMARKS = (
    Benchmark("longbench", 4096),
    Benchmark("mini_longbench", 4096, regime="aware"),
    Benchmark("longbench_v2", 8192),
    Benchmark("gsm8k", 2048),
    Benchmark("math", 2048),
    Benchmark("needle", 1024, split="test"),
    Benchmark("code", 2048),
    Benchmark("kv_retrieval", 6144),
    Benchmark("longeval", 5120),
)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--data", action="append", default=[], help="a benchmark's file or a folder; repeat for more")
    parser.add_argument("--only", default="", help="families, comma-separated (default: all)")
    parser.add_argument("--limit", type=int, default=12, help="most items of each task (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)), help="default: %(default)s")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where run folders go (default: runs)")
    return parser.parse_args()


def measure(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace, benchmark: Benchmark) -> None:
    """Measure one benchmark and print its table."""
    name = benchmark.family
    with report.progress() as bar:
        found = api.evaluate(
            loaded,
            policies=options.policies.split(","),
            ratios=[float(ratio) for ratio in options.ratios.split(",")],
            tasks=[name],
            data=options.data,
            run=options.runs / f"benchmarks-{Path(loaded.name).name}" / name,
            length=benchmark.length,
            limit=options.limit,
            skip_long=True,
            regime=benchmark.regime,
            split=benchmark.split,
            scoring=["answer", "fidelity"],
            references=["full", "random"],
            progress=following(bar, name),
        )
    metric, fidelity = found.summary("answer"), found.summary("fidelity")
    items = ", ".join(f"{task.split(':')[-1]} {count}" for task, count in sorted(metric.items.items()))
    left = {place: count for place, count in (found.settings.get("left_out") or {}).items() if count}
    skipped = found.settings.get("skipped") or {}
    report.table(
        f"{name}, {benchmark.length} tokens, query-{benchmark.regime}, split {benchmark.split}. Items measured: {items}"
        f"; longer ones passed over on the way: {sum(left.values())}; tasks skipped: {len(skipped)}. Each cell: metric "
        "[95 %] / token agreement with the full cache",
        ["policy", *metric.budgets],
        [[row, *(pair(metric, fidelity, row, budget) for budget in metric.budgets)] for row in rows_of(metric)],
    )
    for task, reason in sorted(skipped.items()):
        report.say(f"{task} is skipped: it {reason}.")
    report.keep(name, {"items": metric.items, "left_out": left, "skipped": skipped, "run": str(found.folder)})


def rows_of(summary: Summary) -> list[str]:
    return [row.label for row in summary.rows]


def pair(metric: Summary, fidelity: Summary, row: str, budget: str) -> str:
    """``0.52 [0.43, 0.61] / 0.88``."""
    left, right = (cell_of(summary, row, budget) for summary in (metric, fidelity))
    if left is None or left.score is None:
        return "rejected" if left else ""
    beside = f"{right.score.estimate:.2f}" if right and right.score else "—"
    return f"{number(left.score)} / {beside}"


def cell_of(summary: Summary, label: str, budget: str) -> CellSummary | None:
    row = next((row for row in summary.rows if row.label == label), None)
    return row.cells.get("0" if label == "full" else budget) if row else None


def main() -> None:
    options = parse_options()
    wanted = options.only.split(",") if options.only else [benchmark.family for benchmark in BENCHMARKS]
    if unknown := set(wanted) - {benchmark.family for benchmark in BENCHMARKS}:
        raise CacheCraftError(f"There is no benchmark {unknown.pop()!r}; choose of {', '.join(FAMILIES)}.")
    loaded = load(options.model, device="cpu", threads=options.threads, progress=print)
    report = BenchReport("benchmarks", vars(options))
    for benchmark in BENCHMARKS:
        if benchmark.family not in wanted:
            continue
        try:
            choose_tasks([benchmark.family], sources=Sources(data=tuple(options.data)))
            measure(loaded, report, options, benchmark)
        except CacheCraftError as error:
            report.say(f"{benchmark.family} is skipped: {error}\n")
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
