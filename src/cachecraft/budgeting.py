"""Search a model's budgets on tasks, set them beside other divisions of the same total, and write them as a file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cachecraft import api
from cachecraft.budgets.constants import searchable
from cachecraft.budgets.evolkv import EvolKV, Space
from cachecraft.budgets.items import Calibration
from cachecraft.budgets.record import FitnessRecord
from cachecraft.budgets.search import Scorer, SearchProgress, explicit, run_search, table
from cachecraft.budgets.settings import EvolKVSettings, SearchTask
from cachecraft.errors import PolicyLoadError
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import versions
from cachecraft.evaluation.store import open_run
from cachecraft.models import LoadedModel, load
from cachecraft.policy.allocation import Allocation, apportion
from cachecraft.policy.budgets_file import FILE_NAME, FORMAT, BudgetsFile, Numbers, Row
from cachecraft.policy.contract import Policy, load_policy
from cachecraft.policy.variants import variant
from cachecraft.reporting.budgets import plot_budgets
from cachecraft.tasks.registry import load_tasks
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

COMPLETIONS = (32, 64, 128, 256, 512, 1024)  # other targets that the found budgets are completed to
RANDOM_DRAWS = 3
EVOLKV = "evolkv"
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
    completions: Sequence[int] = COMPLETIONS,
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
        completions: Other targets that the budgets found are completed to, for the file.
        essays: Text files for essay haystacks.
        data: Files or folders of questions, or ``"hub"``.
        force: Accept a model class that CacheCraft was not tested with.
        trust: Allow a policy file, which runs in this process with its rights.
        progress: Called after each generation and while the table is measured.

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
    setup = _Setup(subject, made, chosen, asked, settings, folder)
    calibration = setup.calibration("search")
    held_out = setup.calibration("validation") if asked.held_out else None
    scorer, search = setup.begin(calibration)
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
    found = setup.file(search, scorer, means, completions, told_settings)
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


@dataclass(frozen=True)
class _Setup:
    """A search before it begins."""

    subject: Subject
    policy: Policy
    tasks: Sequence[Task]
    asked: SearchTask
    settings: EvolKVSettings
    folder: Path

    def calibration(self, split: str) -> Calibration:
        traces = self.folder / "traces" / split
        ranked = not self.settings.with_params
        shared = self.adaptive_heads
        return Calibration(self.subject, self.tasks, self.asked, split, traces, ranked=ranked, adaptive_heads=shared)

    @property
    def adaptive_heads(self) -> bool:
        """Whether the heads of a layer share its budget by score."""
        return self.settings.heads == "adaptive"

    def begin(self, calibration: Calibration) -> tuple[Scorer, EvolKV]:
        """The scorer and the search at its beginning."""
        structure, asked = self.subject.structure, self.asked
        keeps = [each.keep for each in calibration.items]
        # A context shorter than the target would keep everything; the target itself says what was asked for.
        target = asked.budget.keep if asked.budget.keep is not None else round(sum(keeps) / len(keeps))
        # Items may differ in length, and under a ratio in their targets, which budgets are in proportion to.
        most = max(each.whole(target) for each in calibration.items)
        names = searchable(self.policy) if self.settings.with_params else ()
        layers, heads = len(structure.compressed), structure.kv_heads
        own = heads if self.settings.granularity == "head" else 1
        search = EvolKV(Space(layers, own, most, len(names)), target, self.settings)
        return Scorer(self.policy, names, layers, heads), search

    def record(self, calibration: Calibration) -> dict[str, object]:
        """The settings as written to run.yaml, with the hash of the text that each task's items come from."""
        asked = self.asked
        made = [each.item for each in calibration.items]
        return {
            "command": "budgets",
            "model": self.subject.name,
            "revision": self.subject.revision,
            "dtype": self.subject.dtype,
            "policy": self.policy.name,
            "policy_id": self.policy.id,
            "tasks": [task.name for task in self.tasks],
            "sources": {item.task: item.source for item in made if item.source},
            "target": asked.budget.label,
            "length": asked.length,
            "samples": asked.samples,
            "held_out": asked.held_out,
            "regime": asked.regime,
            "fitness": asked.fitness,
            "item_seed": asked.seed,
            "skip_long": asked.skip_long,
            **self.settings.record(),
            "not_compressed": self.subject.structure.note,
            "versions": versions(),
        }

    def completed(self, search: EvolKV, target: int) -> list[int]:
        """The best budgets, completed to a target."""
        assert search.best is not None
        budgets = search.best.budgets
        return apportion(budgets, len(budgets) * target, min(self.settings.minimum, target), search.most)

    def explicit(self, budgets: Sequence[float], layers: int) -> Allocation:
        """Budgets as an allocation, heads as they are searched with."""
        return explicit(budgets, layers, adaptive_heads=self.adaptive_heads)

    def rows(self, search: EvolKV, scorer: Scorer) -> dict[str, list[Policy]]:
        """The divisions of the table, all of the same total."""
        assert search.best is not None
        count, layers = len(search.best.budgets), scorer.layers
        own = scorer.at(search.best)
        rows = {EVOLKV: [variant(own, allocation=self.explicit(self.completed(search, search.target), layers))]}
        if own.id != scorer.policy.id:
            rows["uniform, constants found"] = [variant(own, allocation=Allocation("uniform"))]
        for name in ("uniform", "pyramid", "reversed_pyramid", "adaptive"):
            rows[name] = [variant(scorer.policy, allocation=Allocation(name))]
        draws = []
        for draw in range(RANDOM_DRAWS):
            chance = random.Random(f"{self.settings.seed}-{draw}")
            draws.append(
                variant(
                    scorer.policy, allocation=self.explicit([chance.uniform(0.0, 2.0) for _ in range(count)], layers)
                )
            )
        return rows | {"random": draws}

    def file(
        self,
        search: EvolKV,
        scorer: Scorer,
        means: dict[str, dict[str, float]],
        completions: Sequence[int],
        record: dict[str, object],
    ) -> BudgetsFile:
        """What was found, as a file."""
        assert search.best is not None
        others = {str(target): self.completed(search, target) for target in completions if 0 < target < search.most}
        return BudgetsFile(
            format=FORMAT,
            budgets=_shaped(self.completed(search, search.target), scorer.layers),
            model=self.subject.name,
            policy=scorer.at(search.best).specification,
            granularity=self.settings.granularity,
            heads="adaptive" if self.adaptive_heads else "alike",
            target=search.target,
            tokens=search.most,
            found=_shaped(search.best.budgets, scorer.layers),
            before=search.known[search.best],
            after=means["search"][EVOLKV],
            completions={key: _shaped(value, scorer.layers) for key, value in others.items()},
            table=[
                Row(name=name, search=value, validation=means.get("validation", {}).get(name))
                for name, value in means["search"].items()
            ],
            search={key: value for key, value in record.items() if key != "versions"},
            evaluated=len(search.known),
        )


def _shaped(budgets: Sequence[int], layers: int) -> Numbers:
    heads = len(budgets) // layers
    numbers: list[int | float] = [*budgets]
    if heads == 1:
        return numbers
    return [numbers[place : place + heads] for place in range(0, len(numbers), heads)]
