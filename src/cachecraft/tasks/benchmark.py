"""A task whose items a published benchmark or the user wrote: which of them a split has, and how each fits a length.

What an item says is the business of each benchmark's own file, which hands over `Sample`s; nothing here is made up
and no text is added.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from random import Random
from typing import Literal

from cachecraft.chat import Tokenizer, frame
from cachecraft.errors import TaskError
from cachecraft.tasks.prompt import render
from cachecraft.tasks.segments import segments_of
from cachecraft.tasks.task import ALL, BOTH_REGIMES, SPLITS, Item, Usable, check_request, item_seed, split_number
from cachecraft.tasks.truncation import Cut, cut_to_fit

TooLong = Literal["refuse", "middle", "start"]
"""What a benchmark does with an item that is too long: nothing, take out its middle, or its start."""


@dataclass(frozen=True)
class Sample:
    """One item of a benchmark before it is fitted to a length.

    Attributes:
        place: Where it stands, for messages: ``line 3 of qasper.jsonl``.
        context: The compressible text, opening instruction included.
        question: What is asked, in the benchmark's words.
        answers: The references; at least one, none of them empty.
        answer_prefix: Text that the answer starts with.
        opening: How many characters of the context are the instruction at its start.
        classes: What a classification chooses from.
        document: Samples that share a document share this name; "" for the hash of the context.
        metric: Name of its own metric, if samples of the task differ in it.
        max_new_tokens: Its own limit; None for the task's.
        chat: Whether the model's chat template is used when it has one.
        stop: Strings at which the answer ends.
        alternatives: Whether the answers are aliases of each other.
        solution: All that the model should write, where the answers are only its end.
    """

    place: str
    context: str
    question: str
    answers: tuple[str, ...]
    answer_prefix: str = ""
    opening: int = 0
    classes: tuple[str, ...] = ()
    document: str = ""
    metric: str = ""
    max_new_tokens: int | None = None
    chat: bool = True
    stop: tuple[str, ...] = ()
    alternatives: bool = True
    solution: str = ""

    @cached_property
    def group(self) -> str:
        """Name shared by the samples that belong in one split."""
        text = self.document or f"{self.context}\0{'' if self.context[self.opening :] else self.question}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class BenchmarkTask:
    """A task over samples that are read when first needed.

    Attributes:
        name: Of the task.
        read: Reads its samples; identical ones are taken once.
        metric: Score of an answer to an item, 0 to 1.
        max_new_tokens: Limit of the generated answer.
        needs: Says what is missing, as half a sentence; "" if nothing is.
        too_long: What is done with an item longer than the length.
        skip_long: Leave such items out instead.
        regimes: In which it can be measured.
        beside: Other scores of an answer by name, which a result tells beside the metric.
        whole: Place of a prompt that comes in one piece, where others of the task do not; "" if there is none.
    """

    name: str
    read: Callable[[], Sequence[Sample]]
    metric: Callable[[str, Item], float]
    max_new_tokens: int
    needs: Callable[[], str]
    too_long: TooLong = "refuse"
    skip_long: bool = False
    regimes: tuple[str, ...] = BOTH_REGIMES
    beside: Mapping[str, Callable[[str, Item], float]] = field(default_factory=dict, compare=False)
    whole: str = ""
    _known: dict[tuple[int, int], tuple[Tokenizer, Cut | None]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def missing(self) -> str:
        """What the task needs and was not given."""
        return self.needs()

    def size(self, split: str) -> int | None:
        """How many samples the data has for a split; fewer where some do not fit the length."""
        return len(self._numbers(split))

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`. The samples of a split come in an order drawn from the base seed."""
        check_request(index, split if split != ALL else SPLITS[0], length)
        fitting = self._fitting(split, length, seed, tokenizer)
        found = next(islice(fitting, index, None), None)
        if found is None:
            raise self._too_few(index, split, length, seed, tokenizer)
        number, cut = found
        return self._made(self.samples[number], cut, index, split, length, seed)

    def usable(self, most: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Usable:
        """How many items fit, left out and cut ones counted; see `Task.usable`."""
        items = cut = too_long = 0
        for number in self._order(split, seed):
            if items == most:
                break
            found = self._cut(number, length, tokenizer)
            if found is None:
                too_long += 1
            else:
                items, cut = items + 1, cut + (found.removed > 0)
        return Usable(items, too_long, cut, self._distinct[1])

    def score(self, answer: str, item: Item) -> float:
        """The benchmark's own metric."""
        return self.metric(answer, item)

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """Every different sample, in the order of the data."""
        return self._distinct[0]

    @cached_property
    def _distinct(self) -> tuple[tuple[Sample, ...], int]:
        """Every different sample, and how many entries repeat one."""
        if self.missing:
            raise TaskError(f"{self.name} cannot be made: it {self.missing}.")
        found: dict[tuple[str, str, tuple[str, ...]], Sample] = {}
        entries = self.read()
        for sample in entries:
            found.setdefault((sample.context, sample.question, sample.answers), sample)
        return tuple(found.values()), len(entries) - len(found)

    @cached_property
    def sha256(self) -> str:
        """Hash of all samples."""
        state = hashlib.sha256()
        for sample in self.samples:
            told = [sample.context, sample.question, sample.answers, sample.metric]
            state.update(json.dumps([*told, sample.solution] if sample.solution else told).encode())
        return state.hexdigest()

    @cached_property
    def _splits(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the samples of each split: samples of one document stay together, counts are about equal."""
        groups: dict[str, list[int]] = {}
        for number, sample in enumerate(self.samples):
            groups.setdefault(sample.group, []).append(number)
        splits: list[list[int]] = [[] for _ in SPLITS]
        for name in sorted(groups, key=lambda each: (-len(groups[each]), each)):
            min(reversed(splits), key=len).extend(groups[name])
        return tuple(tuple(sorted(each)) for each in splits)

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Groups of more than one sample, which the statistics take together."""
        held = Counter(sample.group for sample in self.samples)
        return frozenset(name for name, count in held.items() if count > 1)

    def _numbers(self, split: str) -> tuple[int, ...]:
        return tuple(range(len(self.samples))) if split == ALL else self._splits[split_number(split)]

    def _order(self, split: str, seed: int) -> list[int]:
        numbers = list(self._numbers(split))
        Random(item_seed(seed, split, self.name, 0, 0)).shuffle(numbers)
        return numbers

    def _fitting(self, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Iterator[tuple[int, Cut]]:
        for number in self._order(split, seed):
            cut = self._cut(number, length, tokenizer)
            if cut is not None:
                yield number, cut

    def _cut(self, number: int, length: int, tokenizer: Tokenizer) -> Cut | None:
        """How a sample fits a length; None if it is to be left out. Refuses what may neither be cut nor left out."""
        # A prompt is tokenised once for each length, not once for each item that comes after it.
        known = self._known.get((number, length))
        if known is None or known[0] is not tokenizer:
            known = tokenizer, self._measured(self.samples[number], length, tokenizer)
            self._known[number, length] = known
        return known[1]

    def _measured(self, sample: Sample, length: int, tokenizer: Tokenizer) -> Cut | None:
        item = self._made(sample, Cut(sample.context), 0, SPLITS[0], length, 0)
        around = frame(tokenizer, chat=sample.chat)
        prompt = render(tokenizer, item, around).ids
        if len(prompt) < 2:
            raise TaskError(
                f"{self.name}: {sample.place} is a prompt of {len(prompt)} token, which leaves nothing to compress: "
                "the last one is always read over what was kept; give it more text."
            )
        tokens = len(prompt) + item.max_new_tokens
        if tokens <= length:
            return Cut(sample.context)
        return None if self.skip_long else self._shortened(sample, item, tokens, tokenizer)

    def _shortened(self, sample: Sample, item: Item, tokens: int, tokenizer: Tokenizer) -> Cut:
        cut = cut_to_fit(item, tokenizer, self.too_long) if self.too_long != "refuse" else None
        if cut is None:
            raise TaskError(
                f"{self.name}: {sample.place} takes {tokens} tokens with its {item.max_new_tokens} new ones, more than "
                f"the length of {item.length}; ask for --length {-(-tokens // 64) * 64} or more, or leave such items "
                "out with --skip-long."
            )
        return cut

    def _made(self, sample: Sample, cut: Cut, index: int, split: str, length: int, seed: int) -> Item:
        return Item(
            task=self.name,
            index=index,
            split=split,
            length=length,
            seed=seed,
            context=cut.context,
            question=sample.question,
            answer_prefix=sample.answer_prefix,
            references=sample.answers,
            max_new_tokens=sample.max_new_tokens or self.max_new_tokens,
            segments=segments_of(cut.context, min(sample.opening, len(cut.context)), sample.answers),
            document=sample.group if sample.group in self._shared else "",
            source=self.sha256,
            stop=sample.stop,
            chat=sample.chat,
            alternatives=sample.alternatives,
            classes=sample.classes,
            metric=sample.metric,
            solution=sample.solution,
            group=sample.group,
        )

    def _too_few(self, index: int, split: str, length: int, seed: int, tokenizer: Tokenizer) -> TaskError:
        usable = self.usable(len(self.samples), split=split, length=length, seed=seed, tokenizer=tokenizer)
        left = f" ({usable.too_long} longer ones are left out)" if usable.too_long else ""
        more = "" if split == ALL else "every item with --split all"
        if not usable.items:
            also = f"; `evaluate` takes {more}" if more else ""
            return TaskError(
                f"The data for {self.name} holds no item for split {split} that fits {length} tokens{left}; "
                f"ask for a greater length or give more data{also}."
            )
        also = f", or {more}" if more else ""
        return TaskError(
            f"The data for {self.name} holds {usable.items} items for split {split} that fit {length} tokens{left}, so "
            f"there is no item {index}; ask for at most {usable.items} items of each task, for a greater length, or "
            f"give more data; `evaluate` takes what there is with --limit{also}."
        )
