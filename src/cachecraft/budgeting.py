"""Search a model's budgets on tasks, set them beside other divisions of the same total, and write them as a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cachecraft import api
from cachecraft.budgets.constants import searchable
from cachecraft.budgets.evolkv import EvolKV
from cachecraft.budgets.record import FitnessRecord
from cachecraft.budgets.search import SearchProgress, run_search, table
from cachecraft.budgets.settings import EvolKVSettings, SearchTask
from cachecraft.budgets.setup import Setup
from cachecraft.errors import BudgetError, PolicyLoadError
from cachecraft.evaluation.store import open_run
from cachecraft.models import LoadedModel, load
from cachecraft.policy.budgets_file import FILE_NAME, BudgetsFile
from cachecraft.policy.contract import Policy, load_policy
from cachecraft.reporting.budgets import plot_budgets
from cachecraft.tasks.registry import load_tasks
from cachecraft.tasks.sources import Sources

COMPLETIONS = (32, 64, 128, 256, 512, 1024)  # other targets that the found budgets are completed to, those that fit
GROWING = ("held_out", "versions")  # in which a run's commands may differ; all else decides what the search does


@dataclass(frozen=True)
class BudgetSearch:
    """What a search of budgets found.

    Attributes:
        folder: The run's folder.
        path: The file of budgets, to be given as an allocation.
        budgets: What it holds.
        policy: The scorer, with the constants found where they were searched along.
        plots: Pictures of the budgets beside uniform and pyramid.
        seconds: That this call spent on searching.
        recording_seconds: The part of them in which items were recorded.
    """

    folder: Path
    path: Path
    budgets: BudgetsFile
    policy: str
    plots: tuple[Path, ...]
    seconds: float = 0.0
    recording_seconds: float = 0.0


def search_budgets(
    model: str | LoadedModel = "smollm2",
    *,
    policy: str = "keydiff",
    tasks: Sequence[str] = ("ruler:niah_single_1",),
    asked: SearchTask,
    settings: EvolKVSettings | None = None,
    run: str | Path = "runs/budgets",
    selector: str | None = None,
    completions: Sequence[int] | None = None,
    essays: Sequence[str] = (),
    data: Sequence[str] = (),
    force: bool = False,
    trust: bool = False,
    progress: Callable[[SearchProgress], None] = lambda _: None,
) -> BudgetSearch:
    """Search how many entries each layer (or kv head) keeps; a run that was interrupted goes on identically.

    Args:
        model: A built-in name, hub id, folder or GGUF file, or a loaded model.
        policy: The scorer: a name, a file or a specification such as ``"snapkv:window=32"``.
        tasks: Names of tasks or families; fitness is the mean over them.
        asked: The target and the items.
        settings: EvolKV's constants.
        run: The run's folder.
        selector: Replaces the policy's own.
        completions: Other targets that the budgets found are completed to, for people to read in the file; None for
            those of `COMPLETIONS` that fit.
        essays: Text files for essay haystacks.
        data: Files or folders of questions, or ``"hub"``.
        force: Accept a model class that CacheCraft was not tested with.
        trust: Allow a policy file, which runs in this process with its rights.
        progress: Called after each item and generation, and while the table is measured.

    Returns:
        The budgets, and where they were written.

    Raises:
        CacheCraftError: Something asked for means nothing, or the folder belongs to another search.
    """
    settings = settings or EvolKVSettings()
    made = budget_policy(policy, selector=selector, trust=trust, settings=settings)
    sources = Sources(tuple(map(Path, essays)), tuple(map(str, data)), skip_long=asked.skip_long)
    chosen = load_tasks(tasks, sources=sources)
    subject = api.subject_of(load(model) if isinstance(model, str) else model, force=force)
    subject.structure.require_room(asked.length)
    folder = Path(run)
    setup = Setup(subject, made, chosen, asked, settings, folder)
    calibration = setup.calibration("search")
    held_out = setup.calibration("validation") if asked.held_out else None
    scorer, search = setup.begin(calibration)
    targets = _completions(completions, search)
    told_settings = setup.record(calibration)
    store = open_run(folder, told_settings, [name for name in told_settings if name not in GROWING])
    for split in ("search", "validation") if held_out else ("search",):
        store.log_reading(split, "budgets", datetime.now(UTC).isoformat(timespec="seconds"))
    store.close()
    shutil.rmtree(folder / "traces", ignore_errors=True)  # of a search that was interrupted, and may be of another kind
    latest: SearchProgress | None = None

    def told(seen: SearchProgress) -> None:
        nonlocal latest
        latest = seen
        progress(seen)

    with FitnessRecord(folder) as record:
        run_search(search, scorer, calibration, record, iterations=settings.iterations, progress=told)

        def tabled(what: str) -> None:
            if latest is not None:
                progress(replace(latest, what=what))

        rows = setup.rows(search, scorer)
        means = {"search": table(rows, calibration, record, tabled)}
        if held_out:
            means["validation"] = table(rows, held_out, record, tabled)
        notes = {name: next(filter(None, (record.note(each.id) for each in own)), None) for name, own in rows.items()}
    found = setup.file(search, scorer, means, notes, targets, told_settings)
    path = folder / FILE_NAME
    partial = folder / f".{FILE_NAME}.{os.getpid()}"  # renamed, so that a kill leaves no half a file
    partial.write_text(found.model_dump_json(indent=1, exclude_none=True) + "\n")
    os.replace(partial, path)
    shutil.rmtree(folder / "traces", ignore_errors=True)
    plots = tuple(folder / f"budgets.{ending}" for ending in ("png", "svg"))
    plot_budgets(found, plots, title=f"{subject.name}, {found.policy}, {found.target} entries a head")
    spent = 0.0 if latest is None else latest.seconds
    return BudgetSearch(folder, path, found, found.policy, plots, spent, calibration.recording_seconds)


def budget_policy(policy: str, *, selector: str | None, trust: bool, settings: EvolKVSettings) -> Policy:
    """The scorer of a search.

    Raises:
        PolicyLoadError: It is a file, which was not trusted.
        BudgetError: Its constants are to be searched along and it has none.
    """
    if load_policy(policy, run=False).foreign and not trust:
        raise PolicyLoadError(
            f"Policy {policy} does not come with CacheCraft, and a search of budgets runs it in this process with your "
            "rights; read it and give --trust."
        )
    made = load_policy(policy, selector=selector)
    if settings.with_params:
        searchable(made)
    return made


def _completions(given: Sequence[int] | None, search: EvolKV) -> Sequence[int]:
    """Other targets to complete to: those given, or all of ours that fit.

    Raises:
        BudgetError: One given leaves an empty cache, or is more than a context holds.
    """
    for target in given or ():
        if not 0 < target <= search.most:
            raise BudgetError(
                f"Budgets cannot be completed to {target} entries a head; give targets from 1 to {search.most}, which "
                "is all of the longest context."
            )
    return [target for target in COMPLETIONS if target < search.most] if given is None else given
