"""Measures the cells of items: their prefills and decisions one after another, their answers together.

It neither chooses what is measured nor stores it: see `cachecraft.evaluation.grid`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from cachecraft.chat import token_ids
from cachecraft.evaluation.answers import Question, answers
from cachecraft.evaluation.apart import Apart
from cachecraft.evaluation.cells import Cell, Regime, Scoring
from cachecraft.evaluation.endings import Ending
from cachecraft.evaluation.forced import fidelities, likelihoods, queries_of
from cachecraft.evaluation.retention import compressed_segments, retention
from cachecraft.evaluation.selections import Selections, Subject
from cachecraft.evaluation.settings import Settings
from cachecraft.evaluation.store import Result
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import Trace, record
from cachecraft.tasks.prompt import Prompt, render
from cachecraft.tasks.task import Item, Task

HELD_BACK = 8  # tokens of a prompt without question and tail that are never compressed

Value = tuple[float, dict[str, Any]]  # a result's value and detail


@dataclass(frozen=True, eq=False)
class Pending:
    """What is still to be measured of an item: by result id, the cell and the scoring."""

    task: Task
    item: Item
    jobs: dict[str, tuple[Cell, Scoring]]

    def cells(self, scoring: Scoring | None = None) -> list[Cell]:
        """Its cells, or those of one scoring; each once."""
        return list({id(cell): cell for cell, kind in self.jobs.values() if scoring in (None, kind)}.values())


def split_prompt(prompt: Prompt, regime: Regime) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is compressed and what follows it.

    Returns:
        The compressed tokens and the tokens run over the compressed cache. Neither is empty: a prompt without question
        and tail to follow holds back its last 8 tokens, or all but its first; tasks make none of a single token.
    """
    before, after = prompt.context_ids, (*prompt.question_ids, *prompt.tail_ids)
    if regime == "aware":
        before, after = (*prompt.context_ids, *prompt.question_ids), prompt.tail_ids
    if not after:
        first = len(before) - min(HELD_BACK, len(before) - 1)
        before, after = before[:first], before[first:]
    return tuple(before), tuple(after)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """An item whose context is recorded and decided on, with what each cell retained of its segments."""

    pending: Pending
    trace: Trace
    selections: Selections
    follow: tuple[int, ...]
    targets: list[tuple[int, ...]]
    ending: Ending
    retained: dict[int, dict[str, Any]]

    def good(self, scoring: Scoring) -> list[Cell]:
        """The cells of a scoring whose policies were not rejected."""
        return [cell for cell in self.pending.cells(scoring) if self.selections.of(cell) is not None]


def measure(
    subject: Subject, settings: Settings, pending: Iterable[Pending], clock: Stopwatch, apart: Apart | None = None
) -> Iterator[tuple[Pending, list[Result]]]:
    """Measure items; an item is asked for when there is room to answer its question beside those being answered.

    Yields:
        Items and their results, as they are done: those with short answers may overtake others.
    """
    found: dict[int, tuple[_Prepared, dict[tuple[int, Scoring], Value]]] = {}

    def questions() -> Iterator[Question]:
        for number, each in enumerate(pending):
            prepared = _prepare(subject, settings, each, clock, apart)
            with clock.phase("answers"):
                values = _likelihoods(subject, prepared)
            prepared = replace(prepared, trace=prepared.trace.without_queries())
            found[number] = prepared, values
            yield _question(subject, prepared)

    with closing(answers(subject.structure, questions())) as done:
        while True:
            with clock.phase("answers"):
                number, ids = next(done, (-1, []))
            if number < 0:
                return
            prepared, values = found.pop(number)
            values |= _scored(prepared, ids)
            with clock.phase("answers"):
                values |= _fidelities(subject, prepared, ids)
            yield prepared.pending, _results(prepared, values)


def _prepare(
    subject: Subject, settings: Settings, pending: Pending, clock: Stopwatch, apart: Apart | None
) -> _Prepared:
    prompt = render(subject.tokenizer, pending.item)
    context, follow = split_prompt(prompt, settings.regime)
    targets = [tuple(token_ids(subject.tokenizer, text)) for text in pending.item.reference_texts]
    with clock.phase("prefill"):
        trace = record(subject.structure, context)
    cells = pending.cells()
    selections = Selections(subject, trace, cells, clock, apart)
    if any(cell.label == "hindsight" for cell in cells):
        with clock.phase("hindsight"):
            selections.add_hindsight(trace, cells, queries_of(subject.structure, trace, follow, targets[0]))
    with clock.phase("retention"):
        segments = compressed_segments(subject.tokenizer, pending.item, prompt, trace.tokens)
        compressed = subject.structure.compressed  # what other layers keep is not the policy's doing
        retained = {
            id(cell): retention([masks[layer] for layer in compressed], segments)
            for cell in cells
            if (masks := selections.of(cell)) is not None
        }
    ending = Ending(subject.tokenizer, pending.item.stop)
    return _Prepared(pending, trace, selections, follow, targets, ending, retained)


def _question(subject: Subject, prepared: _Prepared) -> Question:
    """What its cells that want an answer are asked, and the full cache last if only fidelity wants its answer."""
    masks = [prepared.selections.masks(cell) for cell in prepared.good("answer")]
    if prepared.good("fidelity") and _full(prepared) is None:
        masks.append(prepared.trace.everything())
    return Question(
        prepared.trace,
        masks,
        prepared.follow,
        prepared.pending.item.max_new_tokens,
        [*prepared.targets[0], *subject.structure.stop_ids],
        prepared.ending,
    )


def _full(prepared: _Prepared) -> int | None:
    """Which of the cells that want an answer is the full cache; None if none is."""
    return next((row for row, cell in enumerate(prepared.good("answer")) if cell.label == "full"), None)


def _scored(prepared: _Prepared, answered: Sequence[Sequence[int]]) -> dict[tuple[int, Scoring], Value]:
    """The answers' scores, by cell and scoring."""
    task, item = prepared.pending.task, prepared.pending.item
    values: dict[tuple[int, Scoring], Value] = {}
    for cell, answer in zip(prepared.good("answer"), answered, strict=False):
        text = prepared.ending.text(answer)
        beside = {name: float(score(text, item)) for name, score in getattr(task, "beside", {}).items()}
        values[id(cell), "answer"] = (
            float(task.score(text, item)),
            {"answer": text, "new_tokens": len(answer), **beside},
        )
    return values


def _likelihoods(subject: Subject, prepared: _Prepared) -> dict[tuple[int, Scoring], Value]:
    """The likelihood of the best of the references, by cell and scoring."""
    cells = prepared.good("likelihood")
    if not cells:
        return {}
    masks = [prepared.selections.masks(cell) for cell in cells]
    by_alias = [
        likelihoods(subject.structure, prepared.trace, masks, prepared.follow, target) for target in prepared.targets
    ]
    best = [max(each, key=lambda found: found.mean_logprob) for each in zip(*by_alias, strict=True)]
    return {
        (id(cell), "likelihood"): (each.mean_logprob, {"forced_match": each.forced_match})
        for cell, each in zip(cells, best, strict=True)
    }


def _fidelities(
    subject: Subject, prepared: _Prepared, answered: Sequence[Sequence[int]]
) -> dict[tuple[int, Scoring], Value]:
    """Agreement with the full cache on its own answer, up to and with the token or string that ends it."""
    cells = prepared.good("fidelity")
    if not cells:
        return {}
    full = _full(prepared)
    continuation = list(answered[-1 if full is None else full])
    stop = min(subject.structure.stop_ids, default=None)
    ended = prepared.ending.place(continuation, len(continuation)) is not None
    if stop is not None and not ended and len(continuation) < prepared.pending.item.max_new_tokens:
        continuation.append(stop)
    masks = [prepared.selections.masks(cell) for cell in cells]
    agreed = fidelities(subject.structure, prepared.trace, masks, prepared.follow, continuation)
    return {(id(cell), "fidelity"): (each.agreement, {"kl": each.kl}) for cell, each in zip(cells, agreed, strict=True)}


def _results(prepared: _Prepared, values: dict[tuple[int, Scoring], Value]) -> list[Result]:
    jobs = prepared.pending.jobs.items()
    return [_result(key, prepared, cell, scoring, values.get((id(cell), scoring))) for key, (cell, scoring) in jobs]


def _result(
    key: str, prepared: _Prepared, cell: Cell, scoring: Scoring, value: tuple[float, dict[str, Any]] | None
) -> Result:
    item, selections = prepared.pending.item, prepared.selections
    empty = Result(
        id=key,
        task=item.task,
        item=item.id,
        number=item.index,
        cluster=item.group or item.document or item.id,
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
    note = selections.notes.get(id(cell))
    return replace(
        empty,
        state="ok",
        value=value[0],
        detail=value[1] | {"retention": prepared.retained[id(cell)]} | ({"allocation": note} if note else {}),
        kept_bytes=selections.bytes_kept(cell),
        forced=selections.forced(cell),
    )
