"""Measure which positions a run's policies keep on one of its items, and keep that in the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from cachecraft import api
from cachecraft.errors import RunError
from cachecraft.evaluation.cells import Budget, Regime
from cachecraft.evaluation.positions import measure_positions, write_positions
from cachecraft.models import LoadedModel
from cachecraft.reporting.report.runs import opened
from cachecraft.tasks.registry import choose_tasks
from cachecraft.tasks.sources import Sources

MOST = 6  # policies that are shown unless others are named
KNOWN = ("keydiff", "snapkv", "streaming_llm")  # shown beside what a discovery found


def keep_positions(
    run: str | Path,
    model: LoadedModel,
    *,
    policies: Sequence[str] | None = None,
    force: bool = False,
    trust: bool = False,
) -> Path:
    """Let policies decide on the first item of a run's first task, at its harshest budget.

    Args:
        run: A run's folder.
        model: What to measure on.
        policies: Specifications; by default the run's first ones, or what a discovery found beside known ones.
        force: Accept a model class that CacheCraft was not tested with.
        trust: Run policies that do not come with CacheCraft in this process; else they run in the sandbox.

    Returns:
        The file, which the run's report shows from then on.

    Raises:
        CacheCraftError: The folder is no run, or a policy or task cannot be had.
    """
    folder = Path(run)
    with opened(folder) as found:
        settings = dict(found.settings)
    tasks = [str(task) for task in settings.get("tasks") or ()]
    if not tasks:
        raise RunError(f"{folder} names no tasks, so there is no item to show positions on.")
    sources = Sources(
        tuple(Path(name) for name in settings.get("essays") or ()),
        tuple(map(str, settings.get("data") or ())),
        bool(settings.get("ruler_compat")),
    )
    task = choose_tasks(tasks, sources=sources).tasks[0]
    length, split = settings.get("length"), str(settings.get("split") or "validation")
    lengths = length if isinstance(length, list) else [length]
    subject = api.subject_of(model, force=force)
    item = task.item(
        0, split=split, length=int(lengths[0] or 1024), seed=int(settings.get("seed") or 0), tokenizer=subject.tokenizer
    )
    selector = str(settings.get("selector") or "each")
    measured = measure_positions(
        subject,
        item,
        list(policies or _policies(folder, settings)),
        _budget(settings),
        regime=cast(Regime, settings.get("regime") or "agnostic"),
        selector=None if selector.startswith("each") else selector,
        trust=trust,
    )
    return write_positions(folder, measured)


def _policies(folder: Path, settings: dict[str, Any]) -> list[str]:
    """The run's own policies; what a discovery found comes before known ones."""
    found = [*map(str, sorted(folder.glob("policies/*.py"))), *map(str, settings.get("policies") or ())]
    if settings.get("command") == "budgets":
        found.append(str(settings.get("policy")))
    return [*found, *(KNOWN if settings.get("command") != "evaluate" else ())][:MOST]


def _budget(settings: dict[str, Any]) -> Budget:
    """The harshest budget of a run."""
    labels = [*map(str, settings.get("budgets") or ()), *map(str, settings.get("ratios") or ())]
    target = settings.get("target")
    if not labels and target is not None:
        labels = [str(target)]
    keeps = [int(label.removeprefix("keep ")) for label in labels if label.startswith("keep ")]
    return Budget(keep=min(keeps)) if keeps else Budget(ratio=max(map(float, labels), default=0.75))
