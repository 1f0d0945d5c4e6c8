"""Answers a question over compressed caches: greedy decoding with the candidates of one or more samples as the batch.

Every row is one candidate (policy and budget) of a sample: rows of one sample share the question's tokens and their
true positions, and differ in what is left of the context. Several samples are answered together: the more tokens a
pass has, the less it costs to read the model's weights for each.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from cachecraft.evaluation.candidates import PASS_TOKENS, Selection, run, shared
from cachecraft.evaluation.drafts import Drafter
from cachecraft.evaluation.endings import Ending
from cachecraft.evaluation.traces import Trace
from cachecraft.runtime import compat
from cachecraft.runtime.grouping import COPIES
from cachecraft.runtime.packed import PackedCache
from cachecraft.runtime.structure import ModelStructure

ROWS = 96  # rows at a time: with fewer, reading the weights costs as much as multiplying by them
HELD_BYTES = 1408 << 20  # keys and values that may be held at a time; one question without others may exceed it


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked over every candidate's cache of one context.

    Attributes:
        trace: The recorded context.
        selections: For each candidate and layer the kept entries, (G, T) bool.
        prompt: Tokens that follow the context: question, template tail, answer prefix; at least one.
        max_new_tokens: The most tokens to generate.
        hint: A likely answer; speeds things up when right and changes nothing else.
        ending: What ends an answer besides stop tokens; None for nothing.
    """

    trace: Trace
    selections: Sequence[Selection]
    prompt: Sequence[int]
    max_new_tokens: int
    hint: Sequence[int] = ()
    ending: Ending | None = None

    @property
    def room(self) -> int:
        """New tokens that each of its rows takes at most."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def bytes(self) -> int:
        """Bytes of keys and values that answering it takes at most: the context, copies of it, its rows' tokens."""
        return (1 + COPIES) * self.trace.full_bytes + self.trace.bytes_per_entry * len(self.selections) * self.room


@dataclass
class _Row:
    """Where the greedy continuation of one candidate stands.

    Attributes:
        question: Number of its question.
        position: Position of the next token to be fed.
        sure: Tokens that it goes on with and that are still to be fed.
        guesses: Tokens that may follow those.
        answer: What it has answered so far.
    """

    question: int
    position: int
    sure: list[int]
    guesses: list[int]
    answer: list[int]


class _Batch:
    """Questions being answered: rows join with a question and leave when their answers are complete."""

    def __init__(self, structure: ModelStructure, limit: int) -> None:
        self._structure, self._limit = structure, limit
        self._cache: PackedCache | None = None
        self._rows: dict[int, _Row] = {}  # by the cache's names, while they run
        self._asked: dict[int, _Asked] = {}
        self._next = 0

    @property
    def size(self) -> int:
        """Rows that are running."""
        return len(self._rows)

    def takes(self, question: Question) -> bool:
        """Whether a question's rows may join those that are running."""
        held = sum(asked.question.bytes for asked in self._asked.values())
        fits = held + question.bytes <= self._limit and self.size + len(question.selections) <= ROWS
        return fits or not self._rows

    def add(self, question: Question) -> int:
        """Let a question's rows join; returns its number."""
        if self._cache is None:
            like, structure = shared(question.trace, []).layers, self._structure
            self._cache = PackedCache(like, heads=structure.heads, windows=structure.windows)
        number, self._next = self._next, self._next + 1
        drafter = Drafter(question.prompt, question.hint, len(question.selections))
        rows = [_Row(number, question.trace.tokens, list(question.prompt), [], []) for _ in question.selections]
        self._asked[number] = _Asked(question, drafter, rows)
        if question.max_new_tokens > 0:
            names = self._cache.admit(shared(question.trace, question.selections), question.room)
            self._rows |= dict(zip(names, rows, strict=True))
        return number

    def finished(self) -> Iterator[tuple[int, list[list[int]]]]:
        """Questions whose rows are all done since the last call, with their answers."""
        running = {row.question for row in self._rows.values()}
        for number in [number for number in self._asked if number not in running]:
            yield number, [row.answer for row in self._asked.pop(number).rows]

    def step(self) -> None:
        """One forward pass."""
        cache = self._cache
        assert cache is not None
        names = cache.rows
        rows = [self._rows[name] for name in names]
        running = set(_next_pass(rows))
        feeds = [row.sure + row.guesses if i in running else [] for i, row in enumerate(rows)]
        hidden = run(self._structure, cache, feeds, [row.position for row in rows])
        fed = [row for i, row in enumerate(rows) if i in running]
        asked = _asked([(len(row.sure), len(row.guesses)) for row in fed])
        if len(asked) < len(hidden):
            hidden = hidden[torch.tensor(asked, device=hidden.device)]
        with torch.no_grad():
            chosen = iter(compat.best_tokens(self._structure.model, hidden).tolist())
        accepted, complete = [0] * len(rows), set()
        for i, (name, row) in enumerate(zip(names, rows, strict=True)):
            if i in running:
                own = [next(chosen) for _ in range(len(row.guesses) + 1)]
                accepted[i], ended = self._asked[row.question].advance(row, own, self._structure.stop_ids)
                if ended:
                    complete.add(name)
                    del self._rows[name]
        cache.accept(accepted)
        cache.drop(complete)


def _next_pass(rows: Sequence[_Row]) -> Iterator[int]:
    """Indices of the rows to run: while any still has its prompt to read, as many of those as a pass takes."""
    reading = [i for i, row in enumerate(rows) if not row.answer]
    tokens = 0
    for i in reading or range(len(rows)):
        tokens += len(rows[i].sure)
        if reading and i != reading[0] and tokens > PASS_TOKENS:
            return
        yield i


@dataclass(frozen=True, eq=False)
class _Asked:
    """A question, its rows, and what guesses their next tokens."""

    question: Question
    drafter: Drafter
    rows: list[_Row]

    def advance(self, row: _Row, own: Sequence[int], stops: frozenset[int]) -> tuple[int, bool]:
        """Take in the tokens that the model chose after the last sure token and after each guess.

        Returns:
            How many of the fed tokens stay, and whether the answer is complete.
        """
        right = next((i for i, token in enumerate(row.guesses) if token != own[i]), len(row.guesses))
        kept = len(row.sure) + right
        row.position += kept
        new = list(own[: right + 1])  # what follows the first wrong guess answers tokens that are not there
        ended = next((i for i, token in enumerate(new) if token in stops), None)
        row.answer += new[:ended]
        ending = self.question.ending
        place = ending.place(row.answer, len(new[:ended])) if ending else None
        if place is not None:
            del row.answer[place:]
        left = self.question.max_new_tokens - len(row.answer)
        if ended is not None or place is not None or left < 1:
            return kept, True
        line = next(i for i, each in enumerate(self.rows) if each is row)
        self.drafter.record(line, new, len(row.guesses), right)
        row.sure, row.guesses = new[-1:], self.drafter.guess(line, left - 1)
        return kept, False


def _asked(fed: Sequence[tuple[int, int]]) -> list[int]:
    """Packed places whose next token is wanted: of (sure, guessed) tokens the last sure one and all guessed."""
    places: list[int] = []
    end = 0
    for sure, guessed in fed:
        end += sure + guessed
        places += range(end - guessed - 1, end)
    return places


def answers(
    structure: ModelStructure, questions: Iterable[Question], limit: int = HELD_BYTES
) -> Generator[tuple[int, list[list[int]]], None, None]:
    """Greedy answers of every candidate to every question, until a stop token or string or the question's limit.

    The next question is asked for when there is room for its rows beside those that still run, so that passes stay
    large and only what is being answered is in memory.

    Args:
        structure: The model's structure.
        questions: What is asked of which context.
        limit: Bytes of keys and values that may be held at a time; a question without others may exceed it.

    Yields:
        As questions are done, their place among `questions`, and for each candidate its new token ids, without the
        stop token and with a stop string.

    Raises:
        ModelError: A question and its answer do not fit the model's positions.
    """
    batch = _Batch(structure, limit)
    waiting = iter(questions)
    latest: Question | None = None
    more = True
    while more or batch.size:
        # Another like the latest is made only when it would have room: a recorded context is large.
        if more and (latest is None or batch.takes(latest)):
            question = next(waiting, None)
            more = question is not None
            if question is not None:
                structure.require_room(question.trace.tokens + question.room, read=question.trace.tokens)
                while not batch.takes(question):
                    batch.step()
                batch.add(question)
                latest = question
        elif batch.size:
            batch.step()
        yield from batch.finished()


def answer_ids(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    hint: Sequence[int] = (),
    ending: Ending | None = None,
    limit: int = HELD_BYTES,
) -> list[list[int]]:
    """Greedy answers of every candidate to one question: `answers` for a single one."""
    most = max(1, limit // ((len(prompt) + max_new_tokens) * trace.bytes_per_entry))
    parts = [selections[first : first + most] for first in range(0, len(selections), most)]
    asked = [Question(trace, part, prompt, max_new_tokens, hint, ending) for part in parts]
    found = dict(answers(structure, asked, limit))
    return [answer for number in range(len(parts)) for answer in found[number]]
