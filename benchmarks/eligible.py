"""Which tasks a model can do with its whole cache, by a few validation items: on the others no policy can lose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench_report import BenchReport
from rich.progress import Progress as Bar

from cachecraft import api
from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.settings import Progress
from cachecraft.models import LoadedModel

ABLE = 0.5  # full-cache score on validation from which a task is measured


def following(bar: Bar, what: str) -> Callable[[Progress], None]:
    """A callback that moves a progress bar."""
    job = bar.add_task(what, total=None)
    return lambda seen: bar.update(job, completed=seen.done, total=seen.total, description=f"{what}, {seen.task}")


def short(length: int) -> str:
    """1024 as 1k."""
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length}"


def able_tasks(
    loaded: LoadedModel,
    report: BenchReport,
    tasks: list[str],
    runs: dict[int, Path],
    validation: int,
) -> list[str]:
    """The tasks that the model can do with its full cache at every length.

    Args:
        loaded: The model.
        report: Shows progress and keeps the scores.
        tasks: Names of tasks or families.
        runs: For each length the folder of its run.
        validation: Validation items of each task.

    Raises:
        CacheCraftError: There is none.
    """
    scores: dict[str, list[float]] = {}
    with report.progress() as bar:
        for length, run in runs.items():
            found = api.evaluate(
                loaded,
                policies=[],
                ratios=[0.0],
                tasks=tasks,
                run=run,
                length=length,
                samples=validation,
                split="validation",
                references=["full"],
                progress=following(bar, f"full cache, {length} tokens"),
            )
            for task, score in found.summary().rows[0].cells["0"].by_task.items():
                scores.setdefault(task, []).append(score)
    report.table(
        f"Full-cache score on validation, {validation} items of each task",
        ["task", *[f"{length} tokens" for length in runs], ""],
        [
            [task, *[f"{score:.2f}" for score in each], "measured" if min(each) >= ABLE else "left out"]
            for task, each in scores.items()
        ],
    )
    report.keep("full_cache_on_validation", scores)
    able = [task for task, each in scores.items() if min(each) >= ABLE]
    if not able:
        raise CacheCraftError("The model can do none of these tasks, so there is nothing to compare on.")
    return able
