"""The commands around a discovery: run it, follow it live, read where its programs come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cachecraft.errors import RunError
from cachecraft.terminal import err, item_progress, one_sentence, out

discover_app = typer.Typer()
DEFAULT_TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_multikey_1,ruler:niah_multivalue"


def _kept(run: Path) -> str:
    return f"What was found is kept in {run}; the same command goes on from there."


@discover_app.command()
def discover(
    model: Annotated[
        list[str] | None, typer.Option(help="smollm2 (built in), a hub id, a folder or a GGUF file; repeat for more.")
    ] = None,
    tasks: Annotated[str, typer.Option(help="Tasks or families, comma-separated.")] = DEFAULT_TASKS,
    length: Annotated[int, typer.Option(help="Tokens of an item, generated ones included.")] = 1024,
    ratios: Annotated[str, typer.Option(help="Shares to evict, comma-separated; fitness is the mean.")] = "0.75,0.88",
    budget: Annotated[str, typer.Option(help="Candidates such as 600, or a time such as 30m.")] = "30m",
    run: Annotated[Path, typer.Option(help="Folder of the run; gone on with if there.")] = Path("runs/discover"),
    seed: Annotated[int, typer.Option(help="Everything by chance derives from it.")] = 0,
    items: Annotated[int, typer.Option(help="Items of each task for promising candidates.")] = 3,
    level: Annotated[
        str, typer.Option(help="What candidates may edit: constants, scorer, selector, scorer+selector, allocation.")
    ] = "scorer+selector",
    islands: Annotated[int, typer.Option(help="Populations that breed apart.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes that run candidates; changes no result.")] = 1,
    test_samples: Annotated[int, typer.Option(help="Test items of each task for the final table; 0 for none.")] = 12,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, … or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Try a model class that was not tested.")] = False,
) -> None:
    """Search for a policy better than the known ones on your model and tasks, and prove it on fresh items."""
    with one_sentence(lambda: _kept(run)):
        from cachecraft.cli import _load, _number, _print_evaluation, _split
        from cachecraft.cli_report import report_beside
        from cachecraft.discovery import discover as run_discovery
        from cachecraft.evolution.settings import DiscoverySettings, parse_budget
        from cachecraft.reporting.search import describe_search, search_display
        from cachecraft.tasks.registry import load_tasks

        settings = DiscoverySettings(
            tasks=tuple(task.name for task in load_tasks(_split([tasks]))),
            ratios=tuple(_number(text, float, "--ratios") for text in _split([ratios])),
            length=length,
            seed=seed,
            items=items,
            level=level,
            islands=islands,
        )
        spent = parse_budget(budget)
        loaded = [_load(name, dtype, device, threads, None) for name in model or ["smollm2"]]
        with search_display(err) as display, item_progress("test") as bar:
            found = run_discovery(
                loaded,
                settings=settings,
                budget=spent,
                run=run,
                workers=workers,
                test_samples=test_samples,
                force=force,
                progress=display,
                test_progress=bar,
            )
        for line in describe_search(found.folder):
            out.print(line, markup=False)
        for evaluation in found.tests:
            _print_evaluation(evaluation, found.files[0].stem)
        out.print(f"\nThe best policies: {', '.join(map(str, found.files))}", markup=False)
        out.print(f"Report: {report_beside(found.folder)}", markup=False, soft_wrap=True)


@discover_app.command()
def lineage(
    run: Annotated[Path, typer.Argument(help="Folder of a discovery.")],
    candidate: Annotated[str | None, typer.Argument(help="Such as c0042; the best one when missing.")] = None,
) -> None:
    """Show where a candidate comes from: its ancestors with what changed and what that brought."""
    with one_sentence():
        from rich.syntax import Syntax

        from cachecraft.discovery import open_discovery
        from cachecraft.evolution.lineage import lineage as line_of

        with open_discovery(run) as population:
            best = population.best
            if candidate is None and best is None:
                raise RunError(f"The discovery in {run} has no candidate that works yet.")
            number = best.number if candidate is None and best else _candidate(candidate or "")
            for step in line_of(population.candidates, number):
                out.print(_headline(step.candidate), markup=False, soft_wrap=True)
                text = step.diff or step.candidate.source
                out.print(Syntax(text, "diff" if step.diff else "python") if out.is_terminal else text, markup=False)
                out.print()


@discover_app.command()
def decompose(
    run: Annotated[Path, typer.Argument(help="Folder of a discovery.")],
    model: Annotated[str | None, typer.Option(help="The run's first when missing.")] = None,
    samples: Annotated[int, typer.Option(help="Validation items of each task.")] = 6,
    ratio: Annotated[float | None, typer.Option(help="Share to evict; the run's largest when missing.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Cross what was found with known scorers and selectors: how much is each side worth?"""
    with one_sentence(lambda: _kept(run)):
        from cachecraft.cli import _load
        from cachecraft.discovery import decompose as cross
        from cachecraft.reporting.search import decomposition_tables

        loaded = _load(model, "auto", "auto", threads, None) if model else None
        with item_progress("decompose") as progress:
            found = cross(run, loaded, samples=samples, ratio=ratio, progress=progress)
        for table in decomposition_tables(found.scores, found.worths):
            out.print(table)
            out.print()
        out.print(
            f"Points: 100 × exp of the mean log-likelihood of the reference answer, {found.items} validation items; "
            "95 % paired bootstrap intervals.",
            style="dim",
        )


def _candidate(text: str) -> int:
    try:
        return int(text.removeprefix("c"))
    except ValueError:
        raise RunError(f"{text!r} names no candidate; give a number such as c0042.") from None


def _headline(candidate: Any) -> str:
    fitness = "no fitness" if candidate.fitness is None else f"recovers {candidate.fitness.mean:.3f}"
    over = "" if candidate.fitness is None else f" over {candidate.fitness.items} items"
    made = f"{candidate.proposal.operator}: {candidate.proposal.note}" if candidate.proposal.note else ""
    return f"{candidate.name} · {candidate.state} · {fitness}{over} · {made}"
