"""The commands around results: what tasks there are, a run's tables, answers, comparisons, pitfalls and needle maps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cachecraft.errors import CacheCraftError, RunError
from cachecraft.terminal import one_sentence, out

results_app = typer.Typer()
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run.")]


@results_app.command()
def tasks(
    family: Annotated[str, typer.Argument(help="One family only.")] = "",
    data: Annotated[list[str] | None, typer.Option(help="What you have: files, folders, hub data sets.")] = None,
) -> None:
    """List the tasks: what each measures, its data, their licence, and what is missing here."""
    with one_sentence():
        from cachecraft.reporting.catalogue import print_catalogue
        from cachecraft.tasks import Sources

        print_catalogue(out, Sources(data=tuple(data or ())), family)


@results_app.command()
def table(
    run: RunFolder,
    against: Annotated[str, typer.Option(help="Also print paired differences to this row.")] = "",
) -> None:
    """Print the table of a run again, of everything that its folder holds."""
    with one_sentence():
        from cachecraft import api

        print_evaluation(api.open_evaluation(run), against)


@results_app.command()
def show(
    run: RunFolder,
    policy: Annotated[str, typer.Option(help="Name as in the table; full, hindsight and random too.")],
    task: Annotated[str, typer.Option(help="Name of a task of the run.")],
    limit: Annotated[int, typer.Option(help="The most items to show.")] = 5,
    retention: Annotated[bool, typer.Option("--retention", help="What was kept of each segment instead.")] = False,
) -> None:
    """Show a policy's answers item by item: the end of the prompt, references, answer and score at each budget."""
    with one_sentence():
        from cachecraft.reporting.retention import print_retention
        from cachecraft.reporting.samples import print_samples

        if retention:
            print_retention(out, run, policy=policy, task=task)
        else:
            print_samples(out, run, policy=policy, task=task, limit=limit)


@results_app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs of one model and regime.")],
    against: Annotated[str, typer.Option(help="Compare all with this row only, such as full; else all pairs.")] = "",
    scoring: Annotated[str, typer.Option(help="answer, likelihood or fidelity; else the first run's first.")] = "",
    margin: Annotated[float, typer.Option(help="Who is within so many points of the full cache?")] = 2.0,
    correction: Annotated[str, typer.Option(help="bh: few false ones among the claims; holm: none at all.")] = "bh",
) -> None:
    """Compare policies on the same items, corrected for many comparisons, and say what is shown and what is not."""
    with one_sentence():
        from cachecraft.evaluation import comparison
        from cachecraft.reporting.comparison import margins, methods, rejections, sentences, side_by_side, unit_of

        if margin <= 0:
            raise CacheCraftError(f"--margin {margin:g} is no margin; give a number of points above 0.")
        cells, scored = comparison.read_cells(runs, scoring)
        found = comparison.compare(cells, comparison.pairs_of(cells, against), correction=correction)
        out.print(side_by_side(cells, comparison.means(cells)))
        out.print()
        for line in [*rejections(cells.rejected), *sentences(found, scored)]:
            out.print(line, markup=False, soft_wrap=True)
        if near := comparison.near_full(cells, margin / unit_of(scored)[0]):
            out.print()
            for line in margins(near, scored):
                out.print(line, markup=False, soft_wrap=True)
        out.print(
            f"\n{len(found)} comparisons of {scored} scores, paired by item; {methods(found)}; intervals each alone, p "
            f"adjusted ({correction}). Model {cells.settings.get('model')}, query-"
            f"{cells.settings.get('regime')}, split {cells.settings.get('split')}.",
            style="dim",
            markup=False,
        )


@results_app.command()
def pitfalls(
    run: RunFolder,
    scoring: Annotated[str, typer.Option(help="answer, likelihood or fidelity; else the first measured.")] = "",
) -> None:
    """Show what averages hide: answers evicted, parts of prompts dropped, scores that rise when more is evicted."""
    with one_sentence():
        from rich.markup import escape
        from rich.table import Table

        from cachecraft import api
        from cachecraft.evaluation import rows
        from cachecraft.reporting.comparison import rejections
        from cachecraft.reporting.pitfalls import neglected, rises, survivals

        evaluation = api.open_evaluation(run)
        chosen = scoring or evaluation.scoring
        listing = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("policy", "budget", "task", "items", "answer survived", "whole in heads", "score if", "if not"):
            listing.add_column(column, justify="left" if column in ("policy", "budget", "task") else "right")
        held = survivals(evaluation.results, chosen)
        if not held and not any(each.scoring == chosen for each in evaluation.results):
            raise RunError(f"{run} holds no results under scoring {chosen!r}.")
        for each in held:
            scores = ["—" if one is None else f"{one:.2f}" for one in (each.score_if_survived, each.score_if_not)]
            shares = f"{each.survived:.2f}", f"{each.heads:.2f}"
            names = escape(each.policy), each.budget, escape(each.task)
            listing.add_row(*names, str(each.items), *shares, *scores)
        out.print(listing)
        out.print("Survived: in every layer each token of it was kept by at least one kv head.", style="dim")
        rejected = rows.rejections(each for each in evaluation.results if each.scoring == chosen)
        for line in rejections(rejected):
            out.print(line, markup=False, soft_wrap=True)
        for title, lines in (
            ("Parts kept less than half as much as the rest", neglected(evaluation.results, chosen)),
            ("Scores that rise with eviction", rises(evaluation.results, chosen, evaluation.length_of)),
        ):
            out.print(f"\n{title}: {len(lines) or 'none'}", style="bold")
            for line in lines:
                out.print(line, markup=False, soft_wrap=True)


@results_app.command()
def heatmap(
    run: RunFolder,
    policy: Annotated[str, typer.Option(help="One row only.")] = "",
) -> None:
    """Print how often the needle was found by depth and length, and draw the maps into the run's folder."""
    with one_sentence():
        from cachecraft import api
        from cachecraft.reporting.comparison import rejections
        from cachecraft.reporting.needle_map import export_maps, print_maps, rejected, spots

        evaluation = api.open_evaluation(run)
        held = spots(evaluation.results, evaluation.texts)
        for line in rejections(rejected(evaluation.results)):
            out.print(line, markup=False, soft_wrap=True)
        if not held:
            raise RunError(f"{run} holds no answers to needle tasks; measure some with --tasks needle.")
        print_maps(out, held, policy)
        written = export_maps(evaluation.results, evaluation.texts, evaluation.folder)
        out.print(f"\nWritten: {', '.join(str(path) for path in written)}", markup=False, soft_wrap=True)


def print_evaluation(evaluation: Any, against: str) -> None:
    """Print a run's tables, one for each scoring and length, and write its exports and its report."""
    from cachecraft.cli_report import report_beside
    from cachecraft.reporting.tables import difference_table, notes, terminal_table

    for summary in evaluation.summaries(against=against):
        out.print()
        if len(evaluation.lengths) > 1:
            out.print(f"{summary.length} tokens, {summary.scoring}", style="bold")
        out.print(terminal_table(summary))
        if against:
            out.print()
            out.print(difference_table(summary))
            out.print("! the 95 % interval of the paired difference excludes 0, and its p is below 0.05", style="dim")
        out.print()
        for line in notes(summary, evaluation.settings):
            out.print(line, style="dim", markup=False)
    written = [*evaluation.export(), *report_beside(evaluation.folder)]
    out.print(f"\nRun folder: {evaluation.folder} ({', '.join(path.name for path in written)})", markup=False)
