"""The command line: each command reads its options, calls the API and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cachecraft import __version__
from cachecraft.cli_budgets import budgets
from cachecraft.cli_discover import discover_app
from cachecraft.cli_generate import generate
from cachecraft.cli_report import report_app
from cachecraft.cli_results import print_evaluation, results_app
from cachecraft.errors import BudgetError, CacheCraftError
from cachecraft.terminal import err, item_progress, one_sentence, out, say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Discover, measure and ship KV-cache eviction policies for transformer language models.",
)
model_app = typer.Typer(no_args_is_help=True, help="The built-in model.")
app.add_typer(model_app, name="model")
for commands in (results_app, discover_app, report_app):
    app.registered_commands += commands.registered_commands
app.command()(generate)
app.command()(budgets)

Models = Annotated[str, typer.Option("--model", help="smollm2 (built in), a hub id, a folder or a GGUF file.")]
Run = Annotated[Path, typer.Option("--run", help="Folder of the run; made when missing, gone on with when not.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cachecraft {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options before the command."""


@app.command()
def evaluate(
    policy: Annotated[list[str], typer.Option(help="NAME, NAME:key=value or FILE.py; repeat for more.")],
    model: Models = "smollm2",
    ratio: Annotated[list[str] | None, typer.Option(help="Share to evict, in [0, 1); repeat, or 0.5,0.75.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Entries to keep per kv head; repeat, or 64,128.")] = None,
    tasks: Annotated[
        str, typer.Option(help="Tasks, families or FILE.jsonl, comma-separated; `cachecraft tasks` lists them.")
    ] = "ruler:niah_single_1",
    length: Annotated[
        str, typer.Option(help="Tokens of an item, generated ones included; 512,1024,2048 for a sweep.")
    ] = "1024",
    samples: Annotated[int, typer.Option(help="Items per task.")] = 20,
    limit: Annotated[int | None, typer.Option(help="At most so many items per task, fewer where there are.")] = None,
    skip_long: Annotated[
        bool, typer.Option("--skip-long", help="Leave out benchmark items longer than the length.")
    ] = False,
    regime: Annotated[
        str, typer.Option(help="agnostic: compressed before the question is seen; aware: with it.")
    ] = "agnostic",
    scoring: Annotated[str, typer.Option(help="answer, likelihood, fidelity; comma-separated for several.")] = "answer",
    split: Annotated[str, typer.Option(help="search, validation, test; all: every item of a benchmark.")] = "test",
    seed: Annotated[int, typer.Option(help="Base seed of the items.")] = 0,
    run: Run = Path("runs/evaluate"),
    selector: Annotated[
        str | None, typer.Option(help="Replaces every policy's own: tokens, chunks:20, pages:16.")
    ] = None,
    allocation: Annotated[
        list[str] | None,
        typer.Option(help="uniform, pyramid, reversed_pyramid, adaptive, global or a budgets file; repeat for more."),
    ] = None,
    against: Annotated[str, typer.Option(help="Also print paired differences to this row.")] = "",
    references: Annotated[
        str, typer.Option(help="Reference lines to measure, comma-separated; or none.")
    ] = "full,hindsight,random",
    essay: Annotated[list[str] | None, typer.Option(help="Text file for essay haystacks; repeat for more.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A benchmark's file, a folder of some, hub or hub:REPOSITORY; repeat for more."),
    ] = None,
    ruler_compat: Annotated[
        bool, typer.Option("--ruler-compat", help="Seed RULER's tasks as the original does.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, … or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Try a model class that was not tested.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run policy files in this process, not in the sandbox.")
    ] = False,
) -> None:
    """Measure policies on a model and print a ranked table with intervals."""
    with one_sentence(lambda: _how_to_go_on(run)):
        from cachecraft import api
        from cachecraft.policy.contract import load_policy
        from cachecraft.tasks import Sources, choose_tasks

        ratios = [_number(text, float, "--ratio") for text in _split(ratio)]
        keeps = [_number(text, int, "--keep") for text in _split(keep)]
        lengths = [_number(text, int, "--length") for text in _split([length])]
        if not ratios and not keeps:
            raise BudgetError("How much stays? Give --ratio (share to evict, such as 0.75) or --keep (entries).")
        api.budgets(ratios, keeps)
        allocations = _split(allocation)
        for spec in policy:  # what can be refused is refused before a model is loaded
            for each in allocations or (None,):
                load_policy(spec, selector=selector, allocation=each, run=trust)
        names = _split([tasks])
        for task, needs in choose_tasks(names, sources=Sources(data=tuple(data or ()))).skipped.items():
            say(f"{task} is skipped: it {needs}.")
        loaded = _load(model, dtype, device, threads, revision)
        with item_progress("evaluate") as progress:
            evaluation = api.evaluate(
                loaded,
                policies=policy,
                ratios=ratios,
                keeps=keeps,
                tasks=names,
                run=run,
                length=lengths,
                samples=samples,
                limit=limit,
                skip_long=skip_long,
                regime=regime,
                scoring=_split([scoring]),
                split=split,
                seed=seed,
                selector=selector,
                allocations=allocations,
                references=[] if references == "none" else _split([references]),
                essays=essay or (),
                data=data or (),
                ruler_compat=ruler_compat,
                force=force,
                trust=trust,
                progress=progress,
            )
        print_evaluation(evaluation, against)


@app.command()
def policies() -> None:
    """List the built-in policies: name, paper, cost and what each one looks at."""
    with one_sentence():
        from rich.table import Table

        from cachecraft.policy.contract import builtin_policies, builtin_source, builtin_wrappers
        from cachecraft.policy.source import cost_class

        listing = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("name", "cost", "paper", "looks at"):
            listing.add_column(column, no_wrap=column != "looks at")
        for name in (*builtin_policies(), *builtin_wrappers()):
            source = builtin_source(name)
            shown = f"{name}(POLICY)" if source.wraps else name
            listing.add_row(shown, cost_class(source.needs), source.paper or "—", ", ".join(source.needs))
        out.print(listing)
        out.print("\ncost: of scoring T entries; w is a window. `cachecraft check FILE.py` tests a policy of your own.")


@app.command()
def check(spec: Annotated[str, typer.Argument(help="FILE.py or a policy's name.")]) -> None:
    """Test whether a policy keeps the contract: every rule that it breaks, in one sentence each."""
    with one_sentence():
        from rich.markup import escape

        from cachecraft.policy.check import check_policy
        from cachecraft.policy.contract import load_policy

        policy = load_policy(spec)
        broken = check_policy(policy)
        for sentence in broken:
            out.print("[red]✗[/]" if out.is_terminal else "x", escape(sentence), soft_wrap=True)
        if broken:
            raise SystemExit(2)
        told = f"{policy.name} keeps the contract; cost {policy.cost}, looks at {', '.join(policy.needs)}."
        out.print(told, markup=False)


@model_app.command()
def fetch(name: Annotated[str, typer.Argument(help="A built-in model.")] = "smollm2") -> None:
    """Download a built-in model once and convert it; prints the folder that holds it."""
    with one_sentence():
        from cachecraft.models import fetch as fetch_model

        print(fetch_model(name, say))


@app.command()
def demo(
    run: Run = Path("runs/demo"),
    samples: Annotated[int, typer.Option(help="Items per task.")] = 2,
    candidates: Annotated[int, typer.Option(help="Candidates of the short discovery, known policies included.")] = 40,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Discover a policy in minutes and compare it with eight known ones, on RULER tasks that a real model can do."""
    with one_sentence(lambda: _how_to_go_on(run)):
        from cachecraft.demo import ABLE, compare, full_scores, short_discovery
        from cachecraft.reporting.search import search_display

        loaded = _load("smollm2", "auto", "cpu", threads, None)
        say("1 of 3. Which tasks can the model do with its full cache?")
        with item_progress("full cache") as progress:
            scores = full_scores(loaded, run, progress=progress)
        able = [task for task, score in scores.items() if score >= ABLE]
        for task, score in scores.items():
            say(f"  {task}: {score:.2f} {'' if task in able else '(left out)'}".rstrip())
        say(f"2 of 3. A short discovery: {candidates} candidates, programs of known policies and mutations of them.")
        with search_display(err) as display:
            found = short_discovery(loaded, run, able, candidates, progress=display)
        say(f"  The best one is {found}")
        say("3 of 3. What was found beside known policies, on items that the search never saw.")
        with item_progress("evaluate") as progress:
            evaluation = compare(loaded, run, able, samples, found, progress=progress)
        print_evaluation(evaluation, found.stem)


def _load(model: str, dtype: str, device: str, threads: int | None, revision: str | None) -> Any:
    from cachecraft.models import load

    return load(model, dtype=dtype, device=device, threads=threads, revision=revision, progress=say)


def _how_to_go_on(run: Path) -> str:
    if not next(run.glob("**/run.sqlite"), None):
        return "Nothing was measured yet; the same command starts again."
    return f"What was measured is kept in {run}; the same command goes on from there."


def _split(values: list[str] | None) -> list[str]:
    return [part.strip() for value in values or [] for part in value.split(",") if part.strip()]


def _number(text: str, kind: Any, option: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number such as 128" if kind is int else "a number such as 0.75"
        raise CacheCraftError(f"{option} {text!r} is not a number; give {wanted}.") from None


def main() -> None:
    """Run the command line; what it raises outside of a command is a fault of ours and shows its traceback."""
    with one_sentence():
        app(standalone_mode=True)


if __name__ == "__main__":
    main()
