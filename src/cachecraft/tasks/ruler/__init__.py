"""RULER (Hsieh et al., 2024, arXiv 2404.06654): synthetic long-context tasks of any length."""

from __future__ import annotations

from cachecraft.tasks.ruler.cwe import CommonWords
from cachecraft.tasks.ruler.fwe import FrequentWords
from cachecraft.tasks.ruler.niah import NiahTask, niah_tasks
from cachecraft.tasks.ruler.qa import QaTask
from cachecraft.tasks.ruler.vt import VariableTracking
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

__all__ = ["CommonWords", "FrequentWords", "NiahTask", "QaTask", "VariableTracking", "ruler_tasks"]


def ruler_tasks(sources: Sources) -> tuple[Task, ...]:
    """All 13 RULER tasks, in the order of the paper's table."""
    return (
        *niah_tasks(sources),
        VariableTracking(),
        CommonWords(sources),
        FrequentWords(sources),
        QaTask("ruler:qa_1", "squad", sources),
        QaTask("ruler:qa_2", "hotpot", sources),
    )
