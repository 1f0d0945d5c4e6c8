"""Every single-pass policy × ratios on the RULER tasks that a model can do, in both regimes: docs/policies.md.

A policy that wraps another is measured over `--base`, or over snapkv where it refuses that one's negative scores.
Scored by the likelihood of the reference answer and by forced match (all reference tokens right under teacher forcing),
which cost a fifth of generated answers. Runs are kept in runs/policies-MODEL-LENGTH-REGIME; a repeated call goes on
where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench_report import RUNS, BenchReport
from eligible import able_tasks, following, short
from subject import add_model_options

from cachecraft import api
from cachecraft.models import load
from cachecraft.policy.contract import builtin_policies, builtin_wrappers
from cachecraft.reporting.summary import FULL_BUDGET, Row, Summary
from cachecraft.reporting.tables import as_csv, notes, number
from cachecraft.terminal import one_sentence

MULTIPLY = {"caote", "criticalkv"}  # wrappers that take no negative scores


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--samples", type=int, default=4, help="test items per task (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=4, help="items that choose the tasks (default: %(default)s)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--regimes", default="agnostic,aware", help="default: %(default)s")
    parser.add_argument("--tasks", default="ruler", help="tasks or families to choose from (default: %(default)s)")
    parser.add_argument("--ratios", default="0.5,0.75,0.88", help="default: %(default)s")
    parser.add_argument("--base", default="keydiff", help="what wrappers wrap (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where run folders go (default: runs)")
    return parser.parse_args()


def single_pass(base: str) -> list[str]:
    """Every built-in policy that decides from one prefill; wrappers over `base`, or what they take instead."""
    own = [name for name in builtin_policies() if name != "random"]
    return [*own, *(f"{name}({'snapkv' if name in MULTIPLY else base})" for name in builtin_wrappers())]


def side_by_side(likelihood: Summary, matches: Summary) -> str:
    """A Markdown table whose cells hold the log-likelihood and the share of forced matches, with their intervals."""
    beside = {row.label: row for row in matches.rows}
    lines = [f"| policy | {' | '.join(likelihood.budgets)} |", f"|---|{'---:|' * len(likelihood.budgets)}"]
    for row in likelihood.rows:
        name = f"*{row.label}*" if row.reference else row.label
        cells = (f"{score_of(row, budget)}, {score_of(beside[row.label], budget)}" for budget in likelihood.budgets)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def score_of(row: Row, budget: str) -> str:
    """The full cache keeps everything, whatever the budget of the column."""
    cell = row.cells.get(FULL_BUDGET if row.label == "full" else budget)
    return number(cell.score) if cell and cell.score else "rejected"


def main() -> None:
    options = parse_options()
    loaded = load(options.model, device="cpu", threads=options.threads, progress=print)
    report = BenchReport("policies-table", vars(options))
    name = f"policies-{loaded.name.rpartition('/')[2]}-{short(options.length)}"
    probes = {options.length: options.runs / f"{name}-eligible"}
    able = able_tasks(loaded, report, options.tasks.split(","), probes, options.validation)
    tables = {}
    for regime in options.regimes.split(","):
        with report.progress() as bar:
            found = api.evaluate(
                loaded,
                policies=single_pass(options.base),
                ratios=[float(ratio) for ratio in options.ratios.split(",")],
                tasks=able,
                run=options.runs / f"{name}-{regime}",
                length=options.length,
                samples=options.samples,
                regime=regime,
                scoring=["likelihood"],
                progress=following(bar, f"query-{regime}"),
            )
        found.export()
        both = found.summaries()
        report.say(f"\n### {loaded.name}, {options.length} tokens, query-{regime}\n\n{side_by_side(*both)}\n")
        for note in notes(both[0], found.settings):
            report.say(note)
        tables |= {f"{regime}, {summary.scoring}": as_csv([summary]) for summary in both}
        report.keep("tables", tables)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
