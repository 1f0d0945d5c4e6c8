"""EvolKV's budgets on held-out items: scorers × targets beside other divisions, and a policy's headline on RULER.

Three parts. `allocations` crosses scorers, allocations and ratios on the eligible RULER tasks, scored by answers.
`table` searches budgets for each scorer and target on the search split and measures them on the test split beside
uniform, pyramid, reversed pyramid and adaptive heads at the same bytes, with paired intervals of exp of the mean
log-likelihood; every cell is printed, those that lose too. `headline` does so for one policy and its ratios over the
RULER tasks that are eligible (full less random at least 0.2 on validation), and prints what share of the full cache's
score is left. All keep their runs, so that a repeated call goes on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_report import RUNS, BenchReport
from rich.markup import escape
from rich.progress import Progress as Bar
from subject import add_model_options

from cachecraft import api
from cachecraft.budgeting import search_budgets
from cachecraft.budgets.search import SearchProgress
from cachecraft.budgets.settings import EvolKVSettings, SearchTask
from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.rows import clusters_of
from cachecraft.evaluation.settings import Progress
from cachecraft.evaluation.statistics import TaskScores, eligible_tasks, macro_difference, macro_mean
from cachecraft.models import LoadedModel, load
from cachecraft.reporting.tables import markdown, notes
from cachecraft.terminal import one_sentence

OTHERS = ("uniform", "pyramid", "reversed_pyramid", "adaptive")
TABLE_TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_multikey_1,ruler:niah_multivalue"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--parts", default="allocations,table,headline", help="default: %(default)s")
    parser.add_argument("--scorers", default="knorm,keydiff,value_diversity", help="`table` (default: %(default)s)")
    parser.add_argument("--targets", default="64,128", help="`table`: entries per kv head (default: %(default)s)")
    parser.add_argument("--tasks", default=TABLE_TASKS, help="`table` (default: %(default)s)")
    parser.add_argument("--policy", default="value_diversity", help="`headline`: the scorer (default: %(default)s)")
    parser.add_argument("--ratios", default="0.88,0.95", help="not `table` (default: %(default)s)")
    parser.add_argument("--headline-tasks", default="ruler", help="tasks to choose the eligible from (default: ruler)")
    parser.add_argument("--data", action="append", default=[], help="question files of ruler:qa_1 and qa_2; repeat")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--search-samples", type=int, default=3, help="search items per task (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=10, help="generations of a group (default: %(default)s)")
    parser.add_argument("--granularity", default="layer", help="layer or head (default: %(default)s)")
    parser.add_argument("--heads", default="alike", help="alike or adaptive (default: %(default)s)")
    parser.add_argument("--with-params", action="store_true", help="search the scorer's constants along")
    parser.add_argument("--samples", type=int, default=10, help="`table`: test items per task (default: %(default)s)")
    parser.add_argument("--headline-items", type=int, default=300, help="test items at least (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=6, help="items that choose the tasks (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=RUNS / "budgets-table", help="where runs go (default: runs/...)")
    return parser.parse_args()


def following(bar: Bar, what: str) -> Callable[[Progress | SearchProgress], None]:
    """A callback that moves a progress bar."""
    job = bar.add_task(what, total=None)

    def update(seen: Progress | SearchProgress) -> None:
        if isinstance(seen, Progress):
            bar.update(job, completed=seen.done, total=seen.total, description=f"{what}, {seen.task}")
        else:
            bar.update(
                job, completed=round(100 * seen.share), total=100, description=f"{what}, search {seen.fitness:.3f}"
            )

    return update


def searched(
    loaded: LoadedModel, report: BenchReport, options: argparse.Namespace, policy: str, budget: Budget, tasks: list[str]
) -> tuple[str, Path]:
    """Search budgets, or read what was found: the policy with its constants, and the file."""
    name = f"{policy.replace(':', '-').replace('/', '-')}-{budget.label.replace(' ', '-')}-{options.granularity}"
    name += "-adaptive" if options.heads == "adaptive" else ""
    name += "-params" if options.with_params else ""
    with report.progress() as bar:
        found = search_budgets(
            loaded,
            policy=policy,
            tasks=tasks,
            asked=SearchTask(budget, length=options.length, samples=options.search_samples, held_out=0),
            settings=EvolKVSettings(
                iterations=options.iterations,
                granularity=options.granularity,
                heads=options.heads,
                with_params=options.with_params,
            ),
            run=options.runs / name,
            data=options.data,
            trust=True,
            progress=following(bar, f"{policy} at {budget.label}"),
        )
    report.say(f"{policy} at {budget.label}: {found.budgets.evaluated} vectors, budgets {found.budgets.budgets}")
    return found.policy, found.path


def scores(found: api.Evaluation, scoring: str) -> dict[str, TaskScores]:
    """By label, task and item; likelihoods as exp of the mean log-likelihood, random draws averaged."""
    held: dict[str, dict[str, dict[str, list[float]]]] = {}
    for each in found.results:
        if each.scoring == scoring and each.value is not None:
            value = math.exp(each.value) if scoring == "likelihood" else each.value
            held.setdefault(each.label, {}).setdefault(each.task, {}).setdefault(each.item, []).append(value)
    return {
        label: {task: {item: sum(own) / len(own) for item, own in items.items()} for task, items in tasks.items()}
        for label, tasks in held.items()
    }


def measured(
    loaded: LoadedModel, report: BenchReport, options: argparse.Namespace, budget: Budget, specs: Sequence[str],
    allocations: Sequence[str], tasks: Sequence[str], run: Path, samples: int, scoring: str, references: Sequence[str]
) -> tuple[dict[str, TaskScores], dict[str, str]]:  # fmt: skip
    """Test scores of policies crossed with allocations, and which items share a document."""
    with report.progress() as bar:
        found = api.evaluate(
            loaded,
            policies=specs,
            ratios=[] if budget.ratio is None else [budget.ratio],
            keeps=[] if budget.keep is None else [budget.keep],
            tasks=tasks,
            run=run,
            length=options.length,
            samples=samples,
            scoring=[scoring],
            allocations=allocations,
            references=references,
            data=options.data,
            trust=True,
            progress=following(bar, run.name),
        )
    return scores(found, scoring), clusters_of(found.results)


def lines(held: dict[str, TaskScores], clusters: dict[str, str], evolkv: str, first: str) -> list[list[str]]:
    """A line for each division: its score, and what EvolKV's is better by."""
    made = []
    for label, own in sorted(held.items(), key=lambda pair: -macro_mean(pair[1]).estimate):
        mean, told = macro_mean(own, clusters), ""
        if label != evolkv:
            apart = macro_difference(held[evolkv], own, clusters)
            better = "!" if apart.sure and apart.low > 0 else ""
            told = f"{apart.estimate:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]{better}"
        made.append([f"{first} {label}", f"{mean.estimate:.3f} [{mean.low:.3f}, {mean.high:.3f}]", told])
    return made


def shown(rows: list[list[str]]) -> list[list[str]]:
    """Rows whose brackets the table prints as they are."""
    return [[escape(cell) for cell in row] for row in rows]


def label_of(held: dict[str, TaskScores], path: Path) -> str:
    """The row of the budgets in a file."""
    return next(label for label in held if label.endswith(f"[{path.parent.name}]"))


def run_allocations(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace) -> None:
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    tasks = eligible(loaded, report, options, Budget(ratio=ratios[0]))
    with report.progress() as bar:
        found = api.evaluate(
            loaded,
            policies=options.scorers.split(","),
            ratios=ratios,
            tasks=tasks,
            run=options.runs / "allocations",
            length=options.length,
            samples=options.samples,
            allocations=[*OTHERS, "global"],
            data=options.data,
            trust=True,
            progress=following(bar, "allocations"),
        )
    summary = found.summary()
    report.say(f"\n### Scorers and allocations, {sum(summary.items.values())} test items per cell\n")
    report.say(markdown(summary))
    for note in notes(summary, found.settings):
        report.say(note)


def run_table(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace) -> None:
    tasks, made = options.tasks.split(","), []
    for scorer in options.scorers.split(","):
        for target in map(int, options.targets.split(",")):
            budget = Budget(keep=target)
            spec, path = searched(loaded, report, options, scorer, budget, tasks)
            run = options.runs / f"test-{path.parent.name}"
            own = (options, budget, [spec], [str(path), *OTHERS], tasks, run, options.samples, "likelihood", ["full"])
            held, clusters = measured(loaded, report, *own)
            made += lines(held, clusters, label_of(held, path), f"c={target}")
    report.table(
        f"exp of the mean log-likelihood on test items, {options.samples} of each task; ! above 0, p < 0.05",
        ["target, division", "mean [95 %]", "EvolKV better by"],
        shown(made),
    )
    report.keep("table", made)


def eligible(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace, budget: Budget) -> list[str]:
    """Tasks on which full and random lie apart, on validation items."""
    with report.progress() as bar:
        found = api.evaluate(
            loaded,
            policies=[],
            ratios=[budget.ratio or 0.0],
            tasks=options.headline_tasks.split(","),
            run=options.runs / f"eligible-{budget.label}",
            length=options.length,
            samples=options.validation,
            split="validation",
            references=["full", "random"],
            data=options.data,
            progress=following(bar, "eligible"),
        )
    held = scores(found, "answer")
    means = {
        label: {task: sum(own.values()) / len(own) for task, own in held[label].items()} for label in ("full", "random")
    }
    chosen = list(eligible_tasks(means["full"], means["random"]))
    if not chosen:
        raise CacheCraftError("On none of these tasks do the full cache and random lie apart.")
    return chosen


def run_headline(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace) -> None:
    made = []
    for ratio in map(float, options.ratios.split(",")):
        budget = Budget(ratio=ratio)
        tasks = eligible(loaded, report, options, budget)
        spec, path = searched(loaded, report, options, options.policy, budget, tasks)
        samples = math.ceil(options.headline_items / len(tasks))
        run, references = options.runs / f"headline-{path.parent.name}", ["full", "hindsight", "random"]
        own = (options, budget, [spec], [str(path), *OTHERS], tasks, run, samples, "answer", references)
        held, clusters = measured(loaded, report, *own)
        evolkv = label_of(held, path)
        made += lines(held, clusters, evolkv, f"{ratio:g}")
        share = macro_mean(held[evolkv]).estimate / macro_mean(held["full"]).estimate
        report.say(
            f"Headline: {evolkv} at ratio {ratio:g} keeps {100 * share:.1f} % of the full cache's score over "
            f"{', '.join(tasks)}, {samples * len(tasks)} test items."
        )
        report.keep(f"headline-{ratio:g}", {"share": share, "tasks": tasks, "items": samples * len(tasks)})
    report.table(
        "Share of the references found in the answer, test items; ! the interval lies above 0 and p < 0.05",
        ["ratio, division", "mean [95 %]", "EvolKV better by"],
        shown(made),
    )
    report.keep("headline", made)


def main() -> None:
    options = parse_options()
    parts = {"allocations": run_allocations, "table": run_table, "headline": run_headline}
    wanted = options.parts.split(",")
    if unknown := set(wanted) - set(parts):
        raise CacheCraftError(f"There is no part {', '.join(sorted(unknown))}; choose among {', '.join(parts)}.")
    loaded = load(options.model, device="cpu", threads=options.threads, progress=print)
    report = BenchReport("budgets-table", vars(options))
    for name in wanted:
        parts[name](loaded, report, options)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
