"""Measures a grid of policies, budgets and reference lines on the items of tasks, one prefill per item.

For each item: render the prompt, record one trace, let every policy decide on it at every budget, run the question
over all compressed caches together with those of the next items, as far as there is room, and store the results of
each item in one transaction. What a run folder holds already is skipped, so an interrupted run goes on where it
stopped, and a kill loses the few items in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cachecraft.evaluation.apart import Apart
from cachecraft.evaluation.cells import Cell, Scoring, make_cells, result_id
from cachecraft.evaluation.measure import Pending, measure
from cachecraft.evaluation.plan import plan_items
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import IDENTITY, Progress, Settings, settings_record
from cachecraft.evaluation.store import RunStore, open_run
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.tasks.task import Item

ENDS = 300  # characters of a context that are stored from its beginning and from its end


def evaluate(
    subject: Subject,
    settings: Settings,
    folder: Path,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    purpose: str = "evaluate",
    trust: bool = False,
) -> tuple[RunStore, list[str]]:
    """Measure everything that `settings` name and that `folder` does not hold yet.

    Args:
        subject: The model.
        settings: What to measure.
        folder: The run's folder; made when there is none.
        progress: Called after each item.
        purpose: What the items are read for, as noted in the run's ledger.
        trust: Run policies that do not come with CacheCraft in this process; else they run in the sandbox.

    Returns:
        The open store, and the ids of this call's results in it (a folder may hold more).

    Raises:
        CacheCraftError: Settings that mean nothing, or a folder that belongs to other settings.
    """
    cells = make_cells(
        settings.policies,
        settings.budgets,
        references=settings.references,
        selector=settings.selector,
        allocations=settings.allocations,
        run=trust,
    )
    for cell in cells:
        if cell.policy is not None and cell.policy.allocation is not None:
            cell.policy.allocation.require_model(len(subject.structure.compressed), subject.structure.kv_heads)
    subject.structure.require_room(max(settings.lengths))
    plan = plan_items(subject, settings)
    record = settings_record(
        subject,
        settings,
        skipped=plan.choice.skipped,
        sources=plan.sources,
        usable=plan.usable,
        skip_long=plan.skip_long,
    )
    store = open_run(folder, record, IDENTITY)
    store.add_policies((cell.policy.id, cell.policy.name, cell.policy.source) for cell in cells if cell.policy)
    store.log_reading(settings.split, purpose, datetime.now(UTC).isoformat(timespec="seconds"))
    clock = Stopwatch()
    wanted: list[str] = []
    done = 0

    def report(task: str, count: int) -> None:
        nonlocal done
        done += 1
        progress(Progress(done, plan.total, task, count, clock.seconds))

    def pending() -> Iterator[Pending]:
        for task, item in plan.items(subject, settings, clock):
            jobs = {
                _id(subject, settings, cell, kind, item): (cell, kind) for cell in cells for kind in settings.scoring
            }
            wanted.extend(jobs)
            held = store.done(jobs)
            missing = {key: job for key, job in jobs.items() if key not in held}
            if missing:
                yield Pending(task, item, missing)
            else:
                report(task.name, 0)

    with Apart() as apart:
        for each, results in measure(subject, settings, pending(), clock, None if trust else apart):
            with clock.phase("store"):
                store.add(results, _item_text(each.item))
            report(each.task.name, len(results))
    return store, wanted


def _id(subject: Subject, settings: Settings, cell: Cell, scoring: Scoring, item: Item) -> str:
    # Fidelity went past stop strings before: such results count no more, and only they.
    cut = {"continuation": "cut"} if scoring == "fidelity" and item.stop else {}
    return result_id(
        model=subject.name,
        revision=subject.revision,
        dtype=subject.dtype,
        cell=cell.fingerprint,
        task=item.task,
        item=item.id,
        regime=settings.regime,
        scoring=scoring,
        **cut,
    )


def _item_text(item: Item) -> dict[str, Any]:
    """What `show` needs of an item: the ends of its prompt and the references, not the whole haystack."""
    whole = len(item.context) <= 2 * ENDS
    return {
        "length": item.length,
        "context_start": item.context if whole else item.context[:ENDS],
        "context_end": "" if whole else item.context[-ENDS:],
        "question": item.question,
        "answer_prefix": item.answer_prefix,
        "references": list(item.references),
        "needles": [item.context[s.start : s.end] for s in item.segments if s.name == "needle"],
    }
