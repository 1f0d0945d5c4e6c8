"""The commands around a discovery: run it, follow it live, read where its programs come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecraft.errors import RunError
from cachecraft.terminal import err, item_progress, one_sentence, out, say

if TYPE_CHECKING:
    from cachecraft.evaluation.settings import Progress
    from cachecraft.evolution.loop import SearchProgress

discover_app = typer.Typer()
DEFAULT_TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_multikey_1,ruler:niah_multivalue"


# Options that say what is searched, and are settings of the same name.
SEARCHED = {"tasks", "length", "ratios", "seed", "items", "level", "islands", "without"}


def _given(context: typer.Context) -> set[str]:
    """Options that were written out."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _kept(run: Path) -> str:
    return f"What was found is kept in {run}; the same command goes on from there."


@contextmanager
def _displays() -> Iterator[tuple[Callable[[SearchProgress], None], Callable[[Progress], None]]]:
    """Show a search, and once its test begins that instead: a console holds one live display."""
    from cachecraft.reporting.search import search_display

    bar: list[Callable[[Progress], None]] = []  # once it is shown
    with ExitStack() as shown:
        display = shown.enter_context(search_display(err))

        def test(progress: Progress) -> None:
            if not bar:
                shown.close()
                bar.append(shown.enter_context(item_progress("test")))
            bar[0](progress)

        yield display, test


@discover_app.command()
def discover(
    context: typer.Context,
    model: Annotated[
        list[str] | None, typer.Option(help="smollm2 (built in), a hub id, a folder or a GGUF file; repeat for more.")
    ] = None,
    tasks: Annotated[str, typer.Option(help="Tasks or families, comma-separated.")] = DEFAULT_TASKS,
    length: Annotated[int, typer.Option(help="Tokens of an item, generated ones included.")] = 1024,
    ratios: Annotated[str, typer.Option(help="Shares to evict, comma-separated; fitness is the mean.")] = "0.75,0.88",
    budget: Annotated[
        str, typer.Option(help="Candidates such as 600, a time such as 30m, or money such as $5.")
    ] = "30m",
    run: Annotated[Path, typer.Option(help="Folder of the run; gone on with if there.")] = Path("runs/discover"),
    seed: Annotated[int, typer.Option(help="Everything by chance derives from it.")] = 0,
    items: Annotated[int, typer.Option(help="Items of each task for promising candidates.")] = 3,
    level: Annotated[
        str, typer.Option(help="What candidates may edit: constants, scorer, selector, scorer+selector, allocation.")
    ] = "scorer+selector",
    start: Annotated[
        list[str] | None, typer.Option(help="NAME or FILE.py to begin with instead of all that is built in; repeat.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help="Built-in policy not to begin with; repeat.")] = None,
    islands: Annotated[int, typer.Option(help="Populations that breed apart.")] = 1,
    proposer: Annotated[
        str | None, typer.Option(help="Where programs come from: mutate (the default), llm, or mix of both.")
    ] = None,
    llm_base_url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint; its key from the environment.")
    ] = None,
    llm_model: Annotated[list[str] | None, typer.Option(help="A model there; repeat for more.")] = None,
    llm_price: Annotated[
        list[str] | None,
        typer.Option(help="Dollars per million tokens of prompts and replies, as 0.15,0.6; per model."),
    ] = None,
    llm_tokens: Annotated[int | None, typer.Option(help="Tokens of prompts and replies that may be used.")] = None,
    llm_reply_tokens: Annotated[
        int | None, typer.Option(help="Tokens that a reply may have; 2048 when missing.")
    ] = None,
    llm_prompt_characters: Annotated[
        int | None, typer.Option(help="Characters of a prompt beyond which programs are left out; 18000 when missing.")
    ] = None,
    llm_seconds: Annotated[float | None, typer.Option(help="Time for a proposal, all tries; 300 when missing.")] = None,
    llm_temperature: Annotated[float | None, typer.Option(help="0 to 2; 0.8 when missing.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Folder of changed prompt files.")] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="A run to search again by its recorded replies; what is left out is as it was there."),
    ] = None,
    diagnosis: Annotated[bool, typer.Option(help="Name plateaus and hacks, and act upon them.")] = True,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that run candidates; one per CPU thread when missing.")
    ] = None,
    test_samples: Annotated[int, typer.Option(help="Test items of each task for the final table; 0 for none.")] = 12,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, … or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Try a model class that was not tested.")] = False,
) -> None:
    """Search for a policy better than the known ones on your model and tasks, and prove it on fresh items."""
    with one_sentence(lambda: _kept(run)):
        from cachecraft.cli import _load, _number, _split
        from cachecraft.cli_report import report_beside
        from cachecraft.cli_results import print_evaluation
        from cachecraft.discovery import discover as run_discovery
        from cachecraft.discovery import starting_from
        from cachecraft.evolution.proposers.assembly import proposing_from
        from cachecraft.evolution.replaying import check_apart, replayed
        from cachecraft.evolution.settings import DiscoverySettings, parse_budget
        from cachecraft.reporting.search import describe_search
        from cachecraft.tasks.registry import load_tasks

        settings = DiscoverySettings(
            tasks=tuple(task.name for task in load_tasks(_split([tasks]))),
            ratios=tuple(_number(text, float, "--ratios") for text in _split([ratios])),
            length=length,
            seed=seed,
            items=items,
            level=level,
            islands=islands,
            without=tuple(without or ()),
        )
        spent, dtypes = parse_budget(budget), [dtype]
        if replay is not None:
            check_apart(replay, run)
            before, given = replayed(replay), _given(context)
            settings = replace(before.settings, **{name: getattr(settings, name) for name in SEARCHED & given})
            model, spent = model or list(before.models), spent if "budget" in given else before.budget
            diagnosis = diagnosis if "diagnosis" in given else before.diagnosis
            dtypes = dtypes if given & {"dtype", "model"} else list(before.dtypes)
        if start:
            settings = starting_from(start, settings)
        how = proposing_from(
            {
                "base_url": llm_base_url,
                "models": tuple(llm_model or ()) or None,
                "most_tokens": llm_tokens,
                "most_money": spent.money,
                "reply_tokens": llm_reply_tokens,
                "prompt_characters": llm_prompt_characters,
                "deadline": llm_seconds,
                "temperature": llm_temperature,
            },
            kind=proposer,
            prices=llm_price or (),
            prompts=prompts,
            replay=replay,
        )
        names = model or ["smollm2"]
        kinds = dtypes if len(dtypes) == len(names) else dtypes * len(names)
        loaded = [_load(name, kind, device, threads, None) for name, kind in zip(names, kinds, strict=True)]
        with _displays() as (display, bar):
            found = run_discovery(
                loaded,
                settings=settings,
                budget=spent,
                run=run,
                proposing_by=how,
                diagnosis=diagnosis,
                workers=workers,
                test_samples=test_samples,
                force=force,
                progress=display,
                test_progress=bar,
                say=say,
            )
        for line in describe_search(found.folder):
            out.print(line, markup=False)
        for evaluation in found.tests:
            print_evaluation(evaluation, found.files[0].stem)
        out.print(f"\nThe best policies: {', '.join(map(str, found.files))}", markup=False)
        for path in report_beside(found.folder):
            out.print(f"Report: {path}", markup=False, soft_wrap=True)


@discover_app.command()
def explain(run: Annotated[Path, typer.Argument(help="Folder of a discovery.")]) -> None:
    """Tell the story of a discovery: what was tried, what was diagnosed, what changed, what it brought."""
    with one_sentence():
        from cachecraft.reporting.explain import explain_run

        for line in explain_run(run):
            out.print(line, markup=False, soft_wrap=True)


@discover_app.command()
def prompts(write: Annotated[Path, typer.Option(help="Folder to write the prompt files into.")]) -> None:
    """Write the prompts for language models as files to change, for `discover --prompts`."""
    with one_sentence():
        from cachecraft.evolution.prompts import write_prompts

        for path in write_prompts(write):
            out.print(path, markup=False, soft_wrap=True)


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
