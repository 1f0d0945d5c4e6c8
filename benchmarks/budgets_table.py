"""EvolKV's budgets on held-out items: scorers × targets beside other divisions, and a policy's headline on RULER.

Three parts. `allocations` crosses scorers, allocations and ratios on the eligible RULER tasks. `table` searches budgets
for each scorer and target on the search split and measures them on the test split beside other divisions at the same
bytes, with paired intervals; every cell is printed, those that lose too. `headline` does so for one policy and its
ratios over the RULER tasks that are eligible (full less random at least 0.2 on validation), and prints what share of
the full cache's score is left. A likelihood counts as exp of the mean log-probability of the reference's tokens. All
keep their runs, so that a repeated call goes on where an interrupted one stopped; another model or setting has folders
of its own. Options are in budgets_options.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench_report import BenchReport
from budgets_options import OTHERS, divisions, folder, parse_options, specifications
from points import in_points
from rich.markup import escape
from rich.progress import Progress as Bar

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
from cachecraft.reporting.tables import markdown, notes, records
from cachecraft.terminal import one_sentence

TITLES = {"likelihood": "exp of the mean log-likelihood", "answer": "Each task's own score of the answer"}


def following(bar: Bar, what: str) -> Callable[[Progress | SearchProgress], None]:
    """A callback that moves a progress bar."""
    job = bar.add_task(what, total=None)

    def update(seen: Progress | SearchProgress) -> None:
        if isinstance(seen, Progress):
            bar.update(job, completed=seen.done, total=seen.total, description=f"{what}, {seen.task}")
        else:
            best = "search" if seen.fitness is None else f"search {seen.fitness:.3f}"
            bar.update(job, completed=round(100 * seen.share), total=100, description=f"{what}, {best}")

    return update


def searched(
    loaded: LoadedModel, report: BenchReport, options: argparse.Namespace, policy: str, budget: Budget, tasks: list[str]
) -> tuple[str, Path]:
    """Search budgets, or read what was found: the policy with its constants, and the file."""
    settings = EvolKVSettings(
        iterations=options.iterations,
        population=options.population,
        granularity=options.granularity,
        heads=options.heads,
        with_params=options.with_params,
    )
    asked = SearchTask(
        budget,
        length=options.length,
        samples=options.search_samples,
        held_out=0,
        fitness=options.fitness,
        skip_long=options.skip_long,
    )
    kinds = [options.granularity] + ["adaptive"] * (options.heads == "adaptive") + ["params"] * options.with_params
    with report.progress() as bar:
        found = search_budgets(
            loaded,
            policy=policy,
            tasks=tasks,
            asked=asked,
            settings=settings,
            run=folder(loaded, options, policy, budget.label, *kinds, tasks=tasks, asked=asked, settings=settings),
            data=options.data,
            trust=True,
            progress=following(bar, f"{policy} at {budget.label}"),
        )
    report.say(
        f"{policy} at {budget.label}: {found.budgets.evaluated} vectors, {found.seconds:.0f} s of search in this call, "
        f"{found.recording_seconds:.0f} s of them recording; budgets {found.budgets.budgets}"
    )
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
            skip_long=options.skip_long,
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
        name = f"{label.partition(' [')[0]} [evolkv]" if label == evolkv else label  # the folder's name is long
        made.append([f"{first} {name}", f"{mean.estimate:.3f} [{mean.low:.3f}, {mean.high:.3f}]", told])
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
    scoring = options.allocation_scoring
    with report.progress() as bar:
        found = api.evaluate(
            loaded,
            policies=specifications(options.scorers),
            ratios=ratios,
            tasks=tasks,
            run=folder(loaded, options, "allocations", tasks=tasks),
            length=options.length,
            samples=options.samples,
            scoring=[scoring],
            allocations=[*OTHERS, "global"],
            data=options.data,
            skip_long=options.skip_long,
            trust=True,
            progress=following(bar, "allocations"),
        )
    if scoring == "likelihood":
        found = replace(found, results=tuple(in_points(found.results)))
    summary = found.summary()
    told = notes(summary, found.settings)
    if scoring == "likelihood":
        told[0] = "Score: 100 × exp of the mean log-probability of the reference answer; macro average, 95 % interval."
    report.say(f"\n### Scorers and allocations, {sum(summary.items.values())} test items per cell\n")
    report.say(markdown(summary))
    for note in told:
        report.say(note)
    report.keep("allocations", records(summary))


def run_table(loaded: LoadedModel, report: BenchReport, options: argparse.Namespace) -> None:
    tasks, made, scoring = options.tasks.split(","), [], options.table_scoring
    references = (options.references or "full").split(",")
    for scorer in specifications(options.scorers):
        for target in map(int, options.targets.split(",")):
            budget = Budget(keep=target)
            spec, path = searched(loaded, report, options, scorer, budget, tasks)
            run, rows = options.runs / f"test-{path.parent.name}", [str(path), *divisions(options)]
            own = (options, budget, [spec], rows, tasks, run, options.samples, scoring, references)
            held, clusters = measured(loaded, report, *own)
            made += lines(held, clusters, label_of(held, path), f"c={target}")
    report.table(
        f"{TITLES[scoring]}, {options.samples} test items of each task; ! the interval lies above 0 and p < 0.05",
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
            run=folder(loaded, options, "eligible", budget.label, tasks=options.headline_tasks),
            length=options.length,
            samples=options.validation,
            split="validation",
            references=["full", "random"],
            data=options.data,
            skip_long=options.skip_long,
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
        run, rows = options.runs / f"headline-{path.parent.name}", [str(path), *divisions(options)]
        references = list(dict.fromkeys(["full", *(options.references or "hindsight,random").split(",")]))
        own = (options, budget, [spec], rows, tasks, run, samples, "answer", references)
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
        f"{TITLES['answer']}, test items; ! the interval lies above 0 and p < 0.05",
        ["ratio, division", "mean [95 %]", "EvolKV better by"],
        shown(made),
    )
    report.keep("headline", made)


def main() -> None:
    options = parse_options(__doc__)
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
