"""Tasks by name: ``family:task`` for one, ``family`` for all of a family, ``FILE.jsonl`` for a file of the user's own.

Making a task of a family reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cachecraft.errors import TaskError, UnknownNameError
from cachecraft.tasks.code import code_tasks
from cachecraft.tasks.custom import ENDING, custom_task
from cachecraft.tasks.longbench import longbench_tasks, mini_longbench_tasks
from cachecraft.tasks.longbench_v2 import longbench_v2_tasks
from cachecraft.tasks.needle import needle_tasks
from cachecraft.tasks.records import kv_retrieval_tasks, longeval_tasks
from cachecraft.tasks.ruler import ruler_tasks
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task
from cachecraft.tasks.worked import gsm8k_tasks, math_tasks

FAMILIES: Mapping[str, Callable[[Sources], tuple[Task, ...]]] = MappingProxyType(
    {
        "ruler": ruler_tasks,
        "longbench": longbench_tasks,
        "longbench_v2": longbench_v2_tasks,
        "mini_longbench": mini_longbench_tasks,
        "gsm8k": gsm8k_tasks,
        "math": math_tasks,
        "needle": needle_tasks,
        "code": code_tasks,
        "kv_retrieval": kv_retrieval_tasks,
        "longeval": longeval_tasks,
    }
)
"""Each family's tasks, made from the user's sources; a new family is one more line here."""


@dataclass(frozen=True)
class Choice:
    """What names stand for.

    Attributes:
        tasks: The tasks that can be made, each once, in the order asked for.
        skipped: Tasks of a family that cannot, by name, with what each needs.
    """

    tasks: tuple[Task, ...]
    skipped: Mapping[str, str]


def task_names() -> tuple[str, ...]:
    """Every single task, in order of family."""
    return tuple(_all(Sources()))


def choose_tasks(names: Sequence[str], *, sources: Sources | None = None) -> Choice:
    """Make tasks by name; of a family, those whose material is there.

    Args:
        names: Tasks (``"ruler:vt"``), families (``"ruler"``, meaning all of it) and files (``"my_tasks.jsonl"``); after
            a task its family need not be said again (``"longbench:qasper", "hotpotqa"``).
        sources: What the user named; read only as far as it takes to say which tasks have their material.

    Raises:
        UnknownNameError: There is no task or family of that name.
        TaskError: No task is named, one that was named itself lacks its material, or none is left, or a file is not as
            it should be.
    """
    known = _all(sources or Sources())
    names = whole_names(names, known)
    if not names:
        raise TaskError("No task was named; name at least one, a family or a file; `cachecraft tasks` lists them.")
    chosen: dict[str, Task] = {}
    skipped: dict[str, str] = {}
    for name in names:
        if name in known:
            chosen[name] = known[name]
        elif name in FAMILIES:
            # An update of a key keeps its first place, so nothing moves when a family follows one of its tasks.
            chosen.update((each, task) for each, task in known.items() if each.startswith(f"{name}:"))
        elif name.endswith(ENDING):
            own = custom_task(name, sources or Sources())
            if chosen.setdefault(own.name, own) is not own:
                raise TaskError(f"Two files of tasks are called {own.name}; rename one of them.")
        elif name.endswith((".json", ".jsonl.gz")):
            raise TaskError(f"{name} is no file of tasks: such files end in {ENDING} and hold one item a line.")
        else:
            raise UnknownNameError("task", name, [*FAMILIES, *known], hint="`cachecraft tasks` lists them.")
    for name, task in list(chosen.items()):
        if missing := task.missing:
            if name in names:
                raise TaskError(f"{name} cannot be made: it {missing}.")
            skipped[name] = missing
            del chosen[name]
    if skipped and not chosen:
        raise TaskError(
            f"None of {', '.join(names)} can be made: {next(iter(skipped))} {next(iter(skipped.values()))}."
        )
    return Choice(tuple(chosen.values()), MappingProxyType(skipped))


def whole_names(names: Sequence[str], known: Collection[str] | None = None) -> tuple[str, ...]:
    """The names with the family before those that leave it out: ``longbench:qasper, hotpotqa``."""
    known = _all(Sources()) if known is None else known
    family, whole = "", []
    for name in names:
        alone = name not in known and name not in FAMILIES and not name.endswith(ENDING)
        whole.append(f"{family}:{name}" if alone and f"{family}:{name}" in known else name)
        if whole[-1] in known and ":" in whole[-1]:
            family = whole[-1].partition(":")[0]
    return tuple(whole)


def load_tasks(names: Sequence[str], *, sources: Sources | None = None) -> list[Task]:
    """The tasks of `choose_tasks`, with the same arguments and errors."""
    return list(choose_tasks(names, sources=sources).tasks)


def _all(sources: Sources) -> dict[str, Task]:
    return {task.name: task for make in FAMILIES.values() for task in make(sources)}
