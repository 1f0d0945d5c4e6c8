"""Is `craft` better than every other single-pass policy? Paired differences on items of the test split.

Opponents: every built-in policy at its defaults, every built-in policy under craft's protection, and every single
signal of the search's grammar as a scorer. All meet craft on the first `--screen` items of each task; at each ratio the
`--close` that come nearest then meet it on `--samples` items of each task. Tasks are those that the model can do with
its full cache on validation items. Shown: craft less the opponent, in points of exp of the mean log-likelihood of the
reference answer and in points of forced matches, with 95 % paired intervals. A repeated call goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench_report import RUNS, BenchReport
from eligible import able_tasks, following, short
from points import in_points
from subject import add_model_options

from cachecraft import api
from cachecraft.evaluation.statistics import Estimate
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.lineage import export
from cachecraft.evolution.proposers.grammar import Grammar
from cachecraft.evolution.proposers.writing import write_form
from cachecraft.models import LoadedModel, load
from cachecraft.policy.contract import builtin_policies, builtin_wrappers, load_policy
from cachecraft.reporting.summary import Summary, summarise
from cachecraft.terminal import one_sentence


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--policy", default="craft", help="who is tested (default: %(default)s)")
    parser.add_argument("--protection", default="first=4,last=16", help="its protection (default: %(default)s)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--tasks", default="ruler", help="tasks or families to choose from (default: %(default)s)")
    parser.add_argument("--ratios", default="0.75,0.88,0.95", help="default: %(default)s")
    parser.add_argument("--screen", type=int, default=4, help="items of each task for all (default: %(default)s)")
    parser.add_argument("--close", type=int, default=4, help="opponents that meet it on all (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=60, help="items of each task for those (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=4, help="items that choose the tasks (default: %(default)s)")
    parser.add_argument("--base", default="keydiff", help="what wrappers wrap (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where run folders go (default: runs)")
    return parser.parse_args()


def opponents(options: argparse.Namespace, folder: Path) -> list[str]:
    """Policies at their defaults, scorers under the protection of the policy that is tested, and single signals."""
    plain = [name for name in builtin_policies() if name not in ("random", options.policy)]
    wrapped = [f"{name}({options.base})" for name in builtin_wrappers() if name != "protected"]
    same = [f"protected({name}):{options.protection}" for name in plain]
    signals = []
    for form, note in Grammar(Interface()).singles():
        name = note.removeprefix("Single signal: ").replace(" ", "_").replace("'", "")
        path = folder / f"signal_{name}.py"
        signals.append(str(export(path, write_form(replace(form, functions={})), overwrite=True)))
    return [*plain, *wrapped, *same, *signals]


def measured(
    loaded: LoadedModel,
    report: BenchReport,
    options: argparse.Namespace,
    rivals: Sequence[str],
    tasks: list[str],
    samples: int,
) -> api.Evaluation:
    """The policy and some rivals on the first `samples` test items of each task."""
    with report.progress() as bar:
        return api.evaluate(
            loaded,
            policies=[options.policy, *rivals],
            ratios=[float(ratio) for ratio in options.ratios.split(",")],
            tasks=tasks,
            run=folder_of(options, loaded),
            length=options.length,
            samples=samples,
            scoring=["likelihood"],
            references=["full", "hindsight"],
            trust=True,  # the single signals' files are ours
            progress=following(bar, f"{len(rivals)} opponents"),
        )


def folder_of(options: argparse.Namespace, loaded: LoadedModel) -> Path:
    """The run's folder."""
    name = f"craft-{loaded.name.rpartition('/')[2]}-{short(options.length)}"
    path: Path = options.runs / name
    return path


def gap(summary: Summary, rival: str, budget: str) -> Estimate | None:
    """The policy less a rival: the summary's difference turned round."""
    row = next((row for row in summary.rows if row.label == rival), None)
    found = row.cells[budget].difference if row and budget in row.cells else None
    return replace(found, estimate=-found.estimate, low=-found.high, high=-found.low) if found else None


def shown(estimate: Estimate | None, factor: float = 1.0) -> str:
    """`+7.1 [2.3, 11.8]`."""
    if estimate is None:
        return "rejected"
    return f"{factor * estimate.estimate:+.1f} [{factor * estimate.low:.1f}, {factor * estimate.high:.1f}]"


@dataclass(frozen=True)
class Meeting:
    """The policy against one rival at one ratio: the policy less the rival, in points."""

    rival: str
    points: Estimate
    matches: Estimate | None


def meetings(found: api.Evaluation, label: str) -> dict[str, list[Meeting]]:
    """For each ratio all rivals that kept the contract, the nearest first."""
    points = summarise(in_points(found.results), "likelihood", against=label)
    matches = found.summary("forced_match", against=label)
    met: dict[str, list[Meeting]] = {}
    for budget in points.budgets:
        all_here = [
            Meeting(row.label, between, gap(matches, row.label, budget))
            for row in points.rows
            if not row.reference and row.label != label and (between := gap(points, row.label, budget))
        ]
        met[budget] = sorted(all_here, key=lambda each: each.points.estimate)
    return met


def own(found: api.Evaluation, label: str, budget: str) -> str:
    """What the policy itself scores, between its lines."""
    texts = []
    for summary, factor, unit in (
        (summarise(in_points(found.results), "likelihood"), 1.0, "points"),
        (found.summary("forced_match"), 100.0, "% forced matches"),
    ):
        cells = {row.label: row.cells.get(budget) or next(iter(row.cells.values())) for row in summary.rows}
        scores = {name: cells[name].score for name in (label, "hindsight", "full")}
        told = ", ".join(f"{name} {factor * each.estimate:.1f}" for name, each in scores.items() if each)
        texts.append(f"{told} {unit}")
    return "; ".join(texts)


def tables(report: BenchReport, found: api.Evaluation, label: str, title: str, most: int) -> dict[str, list[Meeting]]:
    """Print at each ratio the nearest rivals; returns all of them."""
    met = meetings(found, label)
    for budget, rivals in met.items():
        above = sum(1 for each in rivals if each.points.low > 0)
        report.say(f"\n{title}, ratio {budget}: {own(found, label, budget)}.")
        report.say(f"Above {above} of {len(rivals)} opponents with the interval above 0; the nearest:")
        report.table(
            "",
            [f"{label} less", "points", "forced matches, points"],
            [[each.rival, shown(each.points), shown(each.matches, 100)] for each in rivals[:most]],
        )
        every = {each.rival: [shown(each.points), shown(each.matches, 100)] for each in rivals}
        report.keep(f"{title}, {budget}", every)
    return met


def main() -> None:
    options = parse_options()
    loaded = load(options.model, device="cpu", threads=options.threads, progress=print)
    report = BenchReport("craft-test", vars(options))
    folder = folder_of(options, loaded)
    probes = {options.length: folder.with_name(f"{folder.name}-eligible")}
    tasks = able_tasks(loaded, report, options.tasks.split(","), probes, options.validation)
    rivals = opponents(options, folder.with_name(f"{folder.name}-signals"))
    by_label = {load_policy(rival).name if rival.endswith(".py") else rival: rival for rival in rivals}
    label = load_policy(options.policy).name if options.policy.endswith(".py") else options.policy
    screen = measured(loaded, report, options, rivals, tasks, options.screen)
    met = tables(report, screen, label, f"All opponents on {options.screen * len(tasks)} items", 12)
    near = dict.fromkeys(each.rival for rivals_met in met.values() for each in rivals_met[: options.close])
    final = measured(loaded, report, options, [by_label.get(rival, rival) for rival in near], tasks, options.samples)
    final.export()
    tables(report, final, label, f"The nearest on {options.samples * len(tasks)} items", len(near))
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
