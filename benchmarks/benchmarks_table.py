"""One table for each benchmark: 8 policies × ratios, the benchmark's metric with fidelity to the full cache beside it.

Items must fit the model: those longer than the length are left out and counted, or cut by the benchmark's own rule
where the heading says so. Each model and family has its own run folder, runs/benchmarks-MODEL/FAMILY, and a repeated
call goes on where an interrupted one stopped. Prints Markdown and keeps every score in results.json; the data are the
files that --data names (docs/tasks.md says which), and benchmarks without theirs are named as skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_report import RUNS, BenchReport
from readme_table import following
from subject import add_model_options

from cachecraft import api
from cachecraft.errors import CacheCraftError
from cachecraft.models import LoadedModel, load
from cachecraft.reporting.summary import CellSummary, Summary
from cachecraft.reporting.tables import number, records
from cachecraft.tasks import Sources, choose_tasks
from cachecraft.tasks.registry import whole_names
from cachecraft.terminal import one_sentence

POLICIES = ("craft", "keydiff", "value_diversity", "vk_ratio", "knorm", "snapkv", "tova", "frc")
RATIOS = (0.5, 0.75, 0.88)


@dataclass(frozen=True)
class Benchmark:
    """A family and how it is measured.

    Attributes:
        family: Its name.
        length: Tokens of an item; the model's context where that is less.
        regime: What is compressed.
        split: That is the published set.
        rule: What the benchmark does with longer items; "" if it has no rule for them.
        cut: Whether that is done here, instead of leaving them out.
        tasks: Single tasks of it; () for all.
    """

    family: str
    length: int
    regime: str = "agnostic"
    split: str = "all"
    rule: str = ""
    cut: bool = False
    tasks: tuple[str, ...] = ()

    @property
    def longer(self) -> str:
        """What becomes of longer items, for the heading."""
        if self.split != "all":
            return "made to fit"
        return f"longer ones cut: {self.rule}" if self.cut else "longer ones left out"


MIDDLE = "out of the middle"
BENCHMARKS = (
    Benchmark("longbench", 4096, rule=MIDDLE),
    Benchmark("mini_longbench", 4096, regime="aware", rule=MIDDLE),
    Benchmark("longbench_v2", 8192, rule=MIDDLE, cut=True),
    Benchmark("gsm8k", 2048),
    Benchmark("math", 2048),
    Benchmark("needle", 1024, split="test"),
    Benchmark("code", 2048, rule=f"{MIDDLE}; CodeXGLUE: off the start"),
    Benchmark("kv_retrieval", 6144),
    Benchmark("longeval", 6144),
)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--data", action="append", default=[], help="a benchmark's file or a folder; repeat for more")
    parser.add_argument("--only", default="", help="families, comma-separated (default: all)")
    parser.add_argument("--tasks", default="", help="single tasks instead, such as longbench:qasper,hotpotqa")
    parser.add_argument("--length", type=int, help="tokens of an item (default: each benchmark's own)")
    parser.add_argument("--cut", action="store_true", help="cut items that are too long, where a benchmark has a rule")
    parser.add_argument("--limit", type=int, default=12, help="most items of each task (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)), help="default: %(default)s")
    parser.add_argument("--references", default="full,random", help="reference lines (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where run folders go (default: runs)")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Benchmark]:
    """The benchmarks asked for, changed as the options say.

    Raises:
        CacheCraftError: There is no benchmark of a name.
    """
    named = whole_names([name for name in options.tasks.split(",") if name])
    known = {benchmark.family: benchmark for benchmark in BENCHMARKS}
    wanted = [name.partition(":")[0] for name in named] or [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - set(known):
        raise CacheCraftError(f"There is no benchmark {unknown.pop()!r}; choose of {', '.join(known)}.")
    return [
        replace(
            each,
            length=options.length or each.length,
            cut=each.cut or (options.cut and bool(each.rule)),
            tasks=tuple(name for name in named if name.partition(":")[0] == each.family),
        )
        for each in (known[family] for family in dict.fromkeys(wanted or known))
    ]


def measure(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace, benchmark: Benchmark) -> None:
    """Measure one benchmark and print its table."""
    name = benchmark.family
    length = min(benchmark.length, api.subject_of(loaded).structure.context)
    with report.progress() as bar:
        found = api.evaluate(
            loaded,
            policies=options.policies.split(","),
            ratios=[float(ratio) for ratio in options.ratios.split(",")],
            tasks=benchmark.tasks or [name],
            data=options.data,
            run=options.runs / f"benchmarks-{Path(loaded.name).name}" / (f"{name}-cut" if options.cut else name),
            length=length,
            limit=options.limit,
            skip_long=not benchmark.cut,
            regime=benchmark.regime,
            split=benchmark.split,
            scoring=["answer", "fidelity"],
            references=[each for each in options.references.split(",") if each],
            progress=following(bar, name),
        )
    metric, fidelity = (found.summary(scoring, length=length) for scoring in ("answer", "fidelity"))
    report.say(
        f"\n**{name}**, {Path(loaded.name).name}, {length} tokens ({benchmark.longer}), query-{benchmark.regime}, "
        f"split {benchmark.split}. Each cell: metric [95 %] / token agreement with the full cache / KL from it, nats a "
        f"token. Items: {counts(metric, found.settings)}.\n"
    )
    report.say(table(metric, fidelity))
    skipped = found.settings.get("skipped") or {}
    for task, reason in sorted(skipped.items()):
        report.say(f"{task} is skipped: it {reason}.")
    held = {key: found.settings.get(key) for key in ("left_out", "cut", "looked_at")}
    kept = {"length": length, "items": metric.items, **held, "skipped": skipped, "run": str(found.folder)}
    report.keep(name, kept | {"scores": [*records(metric), *records(fidelity)]})


def counts(summary: Summary, settings: Mapping[str, Any]) -> str:
    """Items of each task, and how many were cut, or how many were looked at to find those that fit."""
    said = []
    for task, count in sorted(summary.items.items()):
        place = f"{task} at {summary.length}"
        cut = (settings.get("cut") or {}).get(place)
        looked_at = (settings.get("looked_at") or {}).get(place)
        of = f" ({cut} of them cut)" if cut else f" of {looked_at} looked at" if looked_at else ""
        said.append(f"{task.split(':')[-1]} {count}{of}")
    return ", ".join(said)


def table(metric: Summary, fidelity: Summary) -> str:
    """Both scorings in one Markdown table."""
    lines = [f"| policy | {' | '.join(metric.budgets)} |", "|---|" + "---:|" * len(metric.budgets)]
    for row in metric.rows:
        name = f"*{row.label}*" if row.reference else row.label
        lines.append(f"| {name} | {' | '.join(cell(metric, fidelity, row.label, each) for each in metric.budgets)} |")
    return "\n".join(lines)


def cell(metric: Summary, fidelity: Summary, row: str, budget: str) -> str:
    """``0.52 [0.43, 0.61] / 0.88 / 0.31``."""
    left, right = (cell_of(summary, row, budget) for summary in (metric, fidelity))
    if left is None or left.score is None:
        return "rejected" if left else ""
    if right is None or right.score is None or right.kl is None:
        return f"{number(left.score)} / — / —"
    return f"{number(left.score)} / {right.score.estimate:.2f} / {right.kl:.2f}"


def cell_of(summary: Summary, label: str, budget: str) -> CellSummary | None:
    row = next((row for row in summary.rows if row.label == label), None)
    return row.cells.get("0" if label == "full" else budget) if row else None


def main() -> None:
    options = parse_options()
    benchmarks = chosen(options)
    loaded = load(options.model, device="cpu", threads=options.threads, progress=print)
    report = BenchReport("benchmarks", vars(options))
    for benchmark in benchmarks:
        try:
            choose_tasks(benchmark.tasks or [benchmark.family], sources=Sources(data=tuple(options.data)))
            measure(loaded, report, options, benchmark)
        except CacheCraftError as error:
            report.say(f"{benchmark.family} is skipped: {error}\n")
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
