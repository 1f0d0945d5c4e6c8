"""Which items of which tasks a run measures, at which lengths; what cannot be built is refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cachecraft.errors import TaskError
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Settings
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.tasks.registry import Choice, choose_tasks
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Task, Usable


@dataclass(frozen=True)
class Plan:
    """The items of a run.

    Attributes:
        choice: The tasks.
        usable: By task and length, how many items are measured, and how many of the data's are left out or cut; of
            tasks without an item that fits, too.
        sources: Hash of the material of each task that has any.
        skip_long: For each task whose data end, whether its long items are left out.
    """

    choice: Choice
    usable: Mapping[tuple[str, int], Usable]
    sources: Mapping[str, str]
    skip_long: Mapping[str, bool]

    @property
    def total(self) -> int:
        """How many items there are."""
        return sum(each.items for each in self.usable.values())

    def items(self, subject: Subject, settings: Settings, clock: Stopwatch) -> Iterator[tuple[Task, Item]]:
        """Every item, tasks and lengths in turn, so that a run cut short has measured all of them alike."""
        for index in range(settings.most):
            for length in settings.lengths:
                for task in self.choice.tasks:
                    if index < self.usable[task.name, length].items:
                        with clock.phase("items"):
                            item = _item(subject, settings, task, index, length)
                        yield task, item


def plan_items(subject: Subject, settings: Settings) -> Plan:
    """Choose tasks and count their items.

    Raises:
        TaskError: A task cannot be made, has too few items, or its prompts cannot be measured in the regime.
        UnknownNameError: There is no such task or split.
    """
    named = tuple(Path(name) for name in settings.essays)
    sources = Sources(named, settings.data, settings.ruler_compat, settings.skip_long)
    choice = choose_tasks(settings.tasks, sources=sources)
    usable: dict[tuple[str, int], Usable] = {}
    hashes: dict[str, str] = {}
    empty: dict[str, str] = {}
    skips: dict[str, bool] = {}
    for task in choice.tasks:
        require_regime(task, settings.regime)
        found = {length: _usable(subject, settings, task, length) for length in settings.lengths}
        usable |= {(task.name, length): each for length, each in found.items()}
        if not any(each.items for each in found.values()):
            empty[task.name] = f"has no item that fits {max(settings.lengths)} tokens"
            continue
        for length, each in found.items():
            # Of data that end, the last item: better to know now than after an hour that it cannot be made.
            ends = task.size(settings.split) is not None
            last = each.items - 1 if ends else 0
            if ends:
                skips[task.name] = settings.skip_long
            if each.items and (source := _item(subject, settings, task, last, length).source):
                hashes[task.name] = source
    kept = tuple(task for task in choice.tasks if task.name not in empty)
    if not kept:
        _item(subject, settings, choice.tasks[0], 0, settings.lengths[0])  # says what is wrong
    return Plan(Choice(kept, {**choice.skipped, **empty}), usable, hashes, skips)


def require_regime(task: Task, regime: str) -> None:
    """Refuse a regime that a task's prompts cannot be measured in; TaskError."""
    if regime not in task.regimes:
        if place := getattr(task, "whole", ""):
            raise TaskError(
                f"{task.name}: {place} has neither question nor answer prefix, so that its prompt can only be "
                f"compressed as a whole; give it one, or ask for --regime {task.regimes[0]}."
            )
        raise TaskError(
            f"The prompts of {task.name} do not say what is context and what is question, so that they can only be "
            f"compressed as a whole; ask for --regime {task.regimes[0]}."
        )


def _usable(subject: Subject, settings: Settings, task: Task, length: int) -> Usable:
    found = task.usable(
        settings.most, split=settings.split, length=length, seed=settings.seed, tokenizer=subject.tokenizer
    )
    return found if settings.limit is not None else replace(found, items=settings.most)


def _item(subject: Subject, settings: Settings, task: Task, index: int, length: int) -> Item:
    return task.item(index, split=settings.split, length=length, seed=settings.seed, tokenizer=subject.tokenizer)
