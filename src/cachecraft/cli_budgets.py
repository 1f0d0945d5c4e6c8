"""`cachecraft budgets`: search how many entries each layer keeps, and write them as a file that other commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cachecraft.errors import BudgetError
from cachecraft.terminal import err, one_sentence, out, say

DEFAULT_TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_multikey_1,ruler:niah_multivalue"


def _kept(run: Path) -> str:
    return f"What was measured is kept in {run}; the same command goes on from there."


def budgets(
    model: Annotated[str, typer.Option(help="smollm2 (built in), a hub id, a folder or a GGUF file.")] = "smollm2",
    policy: Annotated[str, typer.Option(help="The scorer: NAME, NAME:key=value or FILE.py.")] = "keydiff",
    tasks: Annotated[str, typer.Option(help="Tasks or families, comma-separated.")] = DEFAULT_TASKS,
    target: Annotated[str | None, typer.Option(help="Entries per kv head on average, such as 128.")] = None,
    ratio: Annotated[str | None, typer.Option(help="Share to evict instead, such as 0.88.")] = None,
    length: Annotated[int, typer.Option(help="Tokens of an item, generated ones included.")] = 1024,
    samples: Annotated[int, typer.Option(help="Items of each task that are searched on.")] = 3,
    held_out: Annotated[int, typer.Option(help="Validation items of each task for the table; 0 for none.")] = 3,
    run: Annotated[Path, typer.Option(help="Folder of the run; gone on with if there.")] = Path("runs/budgets"),
    group_size: Annotated[int, typer.Option(help="Layers that are searched together.")] = 8,
    iterations: Annotated[int, typer.Option(help="Generations of each group.")] = 10,
    population: Annotated[int | None, typer.Option(help="Candidates of a generation; by default 4 + 3 ln n.")] = None,
    sigma: Annotated[str, typer.Option(help="First step, in units of the target.")] = "0.3",
    weight: Annotated[str, typer.Option("--lambda", help="How much the cache's size counts.")] = "0.3",
    discount: Annotated[str, typer.Option("--gamma", help="How little a smaller cache gains.")] = "0.2",
    mean: Annotated[str, typer.Option(help="Whose size counts: that of all layers, or of the group.")] = "all",
    minimum: Annotated[int, typer.Option(help="Least entries of a kv head.")] = 1,
    granularity: Annotated[str, typer.Option(help="layer, or head: kv heads have budgets of their own.")] = "layer",
    heads: Annotated[
        str, typer.Option(help="alike, or adaptive: a layer's heads share its budget by score.")
    ] = "alike",
    with_params: Annotated[bool, typer.Option("--with-params", help="Search the scorer's constants along.")] = False,
    fitness: Annotated[str, typer.Option(help="likelihood of the reference answer, or score of the answer.")] = (
        "likelihood"
    ),
    regime: Annotated[str, typer.Option(help="agnostic or aware.")] = "agnostic",
    seed: Annotated[int, typer.Option(help="Everything by chance derives from it.")] = 0,
    selector: Annotated[str | None, typer.Option(help="Replaces the policy's own: chunks:20, pages:16.")] = None,
    completions: Annotated[
        str | None, typer.Option(help="Other targets to complete to; by default 32, 64, … 1024 as far as they fit.")
    ] = None,
    essay: Annotated[list[str] | None, typer.Option(help="Text file for essay haystacks; repeat for more.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Question file, folder or hub; repeat for more.")] = None,
    skip_long: Annotated[
        bool, typer.Option("--skip-long", help="Leave out benchmark items longer than the length.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, … or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Try a model class that was not tested.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Allow a policy file, run in this process.")] = False,
) -> None:
    """Search how many entries each layer keeps (EvolKV) on your model and tasks, and write budgets.json."""
    with one_sentence(lambda: _kept(run)):
        from cachecraft.budgeting import budget_policy, search_budgets
        from cachecraft.budgets.settings import EvolKVSettings, SearchTask
        from cachecraft.cli import _load, _number, _split
        from cachecraft.cli_report import report_beside
        from cachecraft.evaluation.cells import Budget
        from cachecraft.reporting.budgets import budget_display, budget_notes, budget_table
        from cachecraft.tasks import Sources, choose_tasks

        if (target is None) == (ratio is None):
            raise BudgetError(
                "How much stays? Give one of --target (entries per kv head) and --ratio (share to evict)."
            )
        asked = SearchTask(
            Budget(
                ratio=None if ratio is None else _number(ratio, float, "--ratio"),
                keep=None if target is None else _number(target, int, "--target"),
            ),
            length=length,
            samples=samples,
            held_out=held_out,
            regime=regime,  # type: ignore[arg-type]  # refused there
            fitness=fitness,  # type: ignore[arg-type]
            seed=seed,
            skip_long=skip_long,
        )
        settings = EvolKVSettings(
            group_size=group_size,
            iterations=iterations,
            population=population,
            sigma=_number(sigma, float, "--sigma"),
            weight=_number(weight, float, "--lambda"),
            discount=_number(discount, float, "--gamma"),
            mean=mean,
            minimum=minimum,
            granularity=granularity,  # type: ignore[arg-type]
            heads=heads,
            with_params=with_params,
            seed=seed,
        )
        others = (
            None if completions is None else [_number(text, int, "--completions") for text in _split([completions])]
        )
        budget_policy(policy, selector=selector, trust=trust, settings=settings)  # before a model is loaded
        names = _split([tasks])
        for task, needs in choose_tasks(names, sources=Sources(data=tuple(data or ()))).skipped.items():
            say(f"{task} is skipped: it {needs}.")
        loaded = _load(model, dtype, device, threads, revision)
        with budget_display(err) as display:
            found = search_budgets(
                loaded,
                policy=policy,
                tasks=names,
                asked=asked,
                settings=settings,
                run=run,
                selector=selector,
                completions=others,
                essays=essay or (),
                data=data or (),
                force=force,
                trust=trust,
                progress=display,
            )
        held = found.budgets
        out.print(budget_table(held))
        for note in budget_notes(held):
            out.print(note, markup=False)
        out.print(
            f"\nFitness: mean {fitness}, from 0 to 1, of {found.policy} at {held.target} entries a head; "
            f"{held.evaluated} vectors measured; {held.before:.3f} before completion to the target, {held.after:.3f} "
            "after.",
            markup=False,
        )
        written = ", ".join(path.name for path in (found.path, *found.plots, *report_beside(found.folder)))
        out.print(f"Run folder: {found.folder} ({written})", markup=False, soft_wrap=True)
        size = f"--keep {target}" if ratio is None else f"--ratio {ratio}"
        chosen = f"--selector {selector} " if selector else ""
        out.print(
            f"Use them: cachecraft evaluate --policy {found.policy!r} {chosen}--allocation {found.path} {size} …",
            markup=False,
            soft_wrap=True,
        )
