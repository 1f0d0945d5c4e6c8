"""Tasks by name: ``family:task`` for one, ``family`` for all of a family. Making a task reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from cachecraft.errors import UnknownNameError
from cachecraft.tasks.ruler import ruler_tasks
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

FAMILIES: Mapping[str, Callable[[Sources], tuple[Task, ...]]] = MappingProxyType({"ruler": ruler_tasks})
"""Each family's tasks, made from the user's sources; a new family is one more line here."""


def task_names() -> tuple[str, ...]:
    """Every single task, in order of family."""
    return tuple(_all(Sources()))


def load_tasks(names: Sequence[str], *, sources: Sources | None = None) -> list[Task]:
    """Make tasks by name.

    Args:
        names: Tasks (``"ruler:vt"``) and families (``"ruler"``, meaning all of it).
        sources: Files that the user named; none of them are read yet.

    Returns:
        The tasks in the order asked for, each once.

    Raises:
        UnknownNameError: There is no task or family of that name.
    """
    known = _all(sources or Sources())
    chosen: dict[str, Task] = {}
    for name in names:
        if name in FAMILIES:
            chosen.update((each, task) for each, task in known.items() if each.startswith(f"{name}:"))
        elif name in known:
            chosen[name] = known[name]
        else:
            raise UnknownNameError("task", name, [*FAMILIES, *known])
    # An update of a key keeps its first place, so nothing moves when a family follows one of its tasks.
    return list(chosen.values())


def _all(sources: Sources) -> dict[str, Task]:
    return {task.name: task for make in FAMILIES.values() for task in make(sources)}
