"""Measures a grid of policies, budgets and reference lines on the items of tasks, one prefill per item.

For each item: render the prompt, record one trace, let every policy decide on it at every budget, run the question
over all compressed caches as one batch, store the results in one transaction. What a run folder holds already is
skipped, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cachecraft.chat import token_ids
from cachecraft.evaluation.answers import Selection, answer_ids, fidelities, likelihoods, queries_of
from cachecraft.evaluation.cells import Cell, Regime, Scoring, make_cells, result_id
from cachecraft.evaluation.retention import compressed_segments, retention
from cachecraft.evaluation.selections import Selections, Subject
from cachecraft.evaluation.settings import IDENTITY, Progress, Settings, settings_record
from cachecraft.evaluation.store import Result, RunStore, open_run
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import Trace, record
from cachecraft.tasks.prompt import Prompt, render
from cachecraft.tasks.registry import load_tasks
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Task

HELD_BACK = 8  # tokens of a prompt without question and tail that are never compressed


def evaluate(
    subject: Subject,
    settings: Settings,
    folder: Path,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    purpose: str = "evaluate",
) -> tuple[RunStore, list[str]]:
    """Measure everything that `settings` name and that `folder` does not hold yet.

    Args:
        subject: The model.
        settings: What to measure.
        folder: The run's folder; made when there is none.
        progress: Called after each item.
        purpose: What the items are read for, as noted in the run's ledger.

    Returns:
        The open store, and the ids of this call's results in it (a folder may hold more).

    Raises:
        CacheCraftError: Settings that mean nothing, or a folder that belongs to other settings.
    """
    tasks = load_tasks(settings.tasks, sources=Sources(tuple(Path(name) for name in settings.essays)))
    cells = make_cells(settings.policies, settings.budgets, references=settings.references, selector=settings.selector)
    subject.structure.require_room(settings.length)
    for task in tasks:  # what cannot be built is refused before there is a run folder
        _item(subject, settings, task, 0)
    store = open_run(folder, settings_record(subject, settings), IDENTITY)
    store.add_policies((cell.policy.id, cell.policy.name, cell.policy.source) for cell in cells if cell.policy)
    store.log_reading(settings.split, purpose, datetime.now(UTC).isoformat(timespec="seconds"))
    clock = Stopwatch()
    wanted: list[str] = []
    total = len(tasks) * settings.samples
    for done, (task, item) in enumerate(_items(subject, settings, tasks, clock), start=1):
        jobs = {
            _id(subject, settings, cell, scoring, item): (cell, scoring)
            for cell in cells
            for scoring in settings.scoring
        }
        wanted += jobs
        held = store.done(jobs)
        missing = {key: job for key, job in jobs.items() if key not in held}
        if missing:
            measured = _measure(subject, settings, task, item, missing, clock)
            with clock.phase("store"):
                store.add(measured, _item_text(item))
        progress(Progress(done, total, task.name, len(missing), clock.seconds))
    return store, wanted


def _items(
    subject: Subject, settings: Settings, tasks: Sequence[Task], clock: Stopwatch
) -> Iterator[tuple[Task, Item]]:
    """Every item, the tasks in turn, so that a run cut short has measured all tasks alike."""
    for index in range(settings.samples):
        for task in tasks:
            with clock.phase("items"):
                item = _item(subject, settings, task, index)
            yield task, item


def _item(subject: Subject, settings: Settings, task: Task, index: int) -> Item:
    return task.item(
        index, split=settings.split, length=settings.length, seed=settings.seed, tokenizer=subject.tokenizer
    )


def _id(subject: Subject, settings: Settings, cell: Cell, scoring: Scoring, item: Item) -> str:
    return result_id(
        model=subject.name,
        revision=subject.revision,
        dtype=subject.dtype,
        cell=cell.fingerprint,
        task=item.task,
        item=item.id,
        regime=settings.regime,
        scoring=scoring,
    )


def split_prompt(prompt: Prompt, regime: Regime) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is compressed and what follows it.

    Returns:
        The compressed tokens and the tokens run over the compressed cache. The second is never empty: a prompt
        without question and tail to follow holds back its last 8 tokens.
    """
    before, after = prompt.context_ids, (*prompt.question_ids, *prompt.tail_ids)
    if regime == "aware":
        before, after = (*prompt.context_ids, *prompt.question_ids), prompt.tail_ids
    if not after:
        before, after = before[:-HELD_BACK], before[-HELD_BACK:]
    return tuple(before), tuple(after)


def _measure(
    subject: Subject,
    settings: Settings,
    task: Task,
    item: Item,
    jobs: dict[str, tuple[Cell, Scoring]],
    clock: Stopwatch,
) -> list[Result]:
    """Measure the missing results of one item."""
    prompt = render(subject.tokenizer, item)
    context, follow = split_prompt(prompt, settings.regime)
    targets = [token_ids(subject.tokenizer, text) for text in item.reference_texts]
    with clock.phase("prefill"):
        trace = record(subject.structure, context)
    cells = list({id(cell): cell for cell, _ in jobs.values()}.values())
    selections = Selections(subject, trace, cells, clock)
    if any(cell.label == "hindsight" for cell in cells):
        with clock.phase("hindsight"):
            selections.add_hindsight(cells, queries_of(subject.structure, trace, follow, targets[0]))
    with clock.phase("retention"):
        segments = compressed_segments(subject.tokenizer, item, prompt, trace.tokens)
        retained = {id(c): retention(selections.masks(c), segments) for c in cells if selections.of(c) is not None}
    results: list[Result] = []
    for scoring in settings.scoring:
        ids = [key for key, (_, kind) in jobs.items() if kind == scoring]
        chosen = [jobs[key][0] for key in ids]
        good = [cell for cell in chosen if selections.of(cell) is not None]
        with clock.phase("answers"):
            scored = _score(
                subject, scoring, task, item, trace, [selections.masks(cell) for cell in good], follow, targets
            )
        values = {
            id(cell): (value, detail | {"retention": retained[id(cell)]})
            for cell, (value, detail) in zip(good, scored, strict=True)
        }
        for key, cell in zip(ids, chosen, strict=True):
            results.append(_result(key, item, cell, scoring, selections, values.get(id(cell))))
    return results


def _score(
    subject: Subject,
    scoring: Scoring,
    task: Task,
    item: Item,
    trace: Trace,
    selections: Sequence[Selection],
    follow: Sequence[int],
    targets: Sequence[Sequence[int]],
) -> list[tuple[float, dict[str, Any]]]:
    """Value and detail of each candidate under one scoring."""
    structure = subject.structure
    if not selections:
        return []
    if scoring == "answer":
        hint = [*targets[0], *structure.stop_ids]
        ids = answer_ids(structure, trace, selections, follow, item.max_new_tokens, hint=hint)
        texts = [_until_stop(subject.tokenizer.decode(answer, skip_special_tokens=True), item.stop) for answer in ids]
        return [
            (float(task.score(text, item)), {"answer": text, "new_tokens": len(answer)})
            for text, answer in zip(texts, ids, strict=True)
        ]
    if scoring == "likelihood":
        by_alias = [likelihoods(structure, trace, selections, follow, target) for target in targets]
        best = [max(each, key=lambda found: found.mean_logprob) for each in zip(*by_alias, strict=True)]
        return [(each.mean_logprob, {"forced_match": each.forced_match}) for each in best]
    (continuation,) = answer_ids(structure, trace, [trace.everything()], follow, item.max_new_tokens)
    stop = min(structure.stop_ids, default=None)
    if stop is not None and len(continuation) < item.max_new_tokens:
        continuation = [*continuation, stop]
    agreed = fidelities(structure, trace, selections, follow, continuation)
    return [(each.agreement, {"kl": each.kl}) for each in agreed]


def _until_stop(text: str, stops: Sequence[str]) -> str:
    """The answer up to the first of the task's stop strings."""
    ends = [text.index(stop) for stop in stops if stop in text]
    return text[: min(ends, default=len(text))]


def _result(
    key: str,
    item: Item,
    cell: Cell,
    scoring: Scoring,
    selections: Selections,
    value: tuple[float, dict[str, Any]] | None,
) -> Result:
    empty = Result(
        id=key,
        task=item.task,
        item=item.id,
        number=item.index,
        cluster=item.document or item.id,
        label=cell.label,
        policy=cell.policy.id if cell.policy else cell.label,
        budget=cell.budget.label,
        reference=cell.reference,
        scoring=scoring,
        state="rejected",
        value=None,
        reason=selections.rejected.get(id(cell), ""),
        tokens=selections.tokens,
        kept_bytes=0,
        full_bytes=selections.bytes_full,
    )
    if value is None:
        return empty
    return replace(
        empty,
        state="ok",
        value=value[0],
        detail=value[1],
        kept_bytes=selections.bytes_kept(cell),
        forced=selections.forced(cell),
    )


def _item_text(item: Item) -> dict[str, Any]:
    """What `show` needs of an item: the ends of its prompt and the references, not the whole haystack."""
    return {
        "context_start": item.context[:300],
        "context_end": item.context[-300:],
        "question": item.question,
        "answer_prefix": item.answer_prefix,
        "references": list(item.references),
        "needles": [item.context[s.start : s.end] for s in item.segments if s.name == "needle"],
    }
