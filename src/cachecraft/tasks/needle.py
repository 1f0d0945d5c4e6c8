"""Needle in a haystack by depth: one number hidden in an essay at 0, 10, … 100 % of it (after Kamradt, 2023).

Each depth is a task, so that a table shows depths as rows and a sweep over lengths draws the map. Wording and answers
are those of RULER's single needle; the score is whether the exact number is found.
"""

from __future__ import annotations

from cachecraft.tasks.ruler.niah import NiahTask
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

DEPTHS = tuple(range(0, 101, 10))  # per cent of the haystack before the needle
MAX_NEW_TOKENS = 32


def needle_tasks(sources: Sources) -> tuple[Task, ...]:
    """One task for each depth, such as ``needle:50``."""
    return tuple(
        NiahTask(f"needle:{depth}", "essay", depth=depth, sources=sources, max_new_tokens=MAX_NEW_TOKENS)
        for depth in DEPTHS
    )
