"""RULER (Hsieh et al., 2024, arXiv 2404.06654): synthetic long-context tasks of any length."""

from __future__ import annotations

from cachecraft.tasks.ruler.niah import NiahTask, niah_tasks
from cachecraft.tasks.ruler.vt import VariableTracking
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

__all__ = ["NiahTask", "VariableTracking", "ruler_tasks"]


def ruler_tasks(sources: Sources) -> tuple[Task, ...]:
    """All RULER tasks, in the order of the paper's table."""
    return (*niah_tasks(sources), VariableTracking())
