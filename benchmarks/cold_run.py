"""One evaluation from nothing (no trace, no stored result), timed as a whole and by phase."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.cells import Budget, Scoring
from cachecraft.evaluation.grid import evaluate
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Progress, Settings
from cachecraft.evaluation.store import Result
from cachecraft.runtime import compat


@dataclass(frozen=True)
class ColdRun:
    """What an evaluation took.

    Attributes:
        seconds, cpu_seconds: Wall and CPU time of the call, the making of the item and the run folder included.
        phases: Wall seconds by phase, as the evaluator reports them.
        results: One per cell.
    """

    seconds: float
    cpu_seconds: float
    phases: dict[str, float]
    results: list[Result]

    @property
    def everything_else(self) -> float:
        """Seconds that are neither the prefill, nor features, nor answers: items, storing, Python."""
        named = ("prefill", "features", "hindsight", "answers")
        return self.seconds - sum(self.phases.get(name, 0.0) for name in named)


def cold_run(
    subject: Subject,
    task: str,
    policies: Sequence[str],
    ratios: Sequence[float],
    length: int,
    scoring: Scoring,
    *,
    samples: int = 1,
) -> ColdRun:
    """Evaluate policies × ratios on the first items of a task in a new folder, without reference lines."""
    settings = Settings(
        policies=tuple(policies),
        budgets=tuple(Budget(ratio=ratio) for ratio in ratios),
        tasks=(task,),
        length=length,
        samples=samples,
        scoring=(scoring,),
        references=(),
    )
    seen: list[Progress] = []
    with tempfile.TemporaryDirectory(prefix="cachecraft-bench-") as temporary:
        wall, cpu = time.perf_counter(), time.process_time()
        store, ids = evaluate(subject, settings, Path(temporary) / "run", progress=seen.append, purpose="benchmark")
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        results = store.results(ids)
        store.close()
    broken = [result.reason for result in results if result.state != "ok"]
    if broken:
        raise CacheCraftError(f"A cell was rejected: {broken[0]}")
    return ColdRun(seconds, cpu_seconds, dict(seen[-1].seconds), results)


def warm_up(subject: Subject) -> None:
    """Let libraries allocate and choose their kernels before anything is timed."""
    model = subject.structure.model
    with torch.no_grad():
        compat.hidden_states(model, torch.arange(64).view(1, -1), torch.arange(64).view(1, -1), None)
