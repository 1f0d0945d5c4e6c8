"""What a task is: the item it makes and the calls that evaluation needs. No wording, no tokenising.

A family (RULER, LongBench, GSM8K, …) is one or more classes with the members of `Task`. Everything that
evaluation may need to know about a sample is in its `Item`, so a new family needs no change outside its own
file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from cachecraft.chat import Tokenizer
from cachecraft.errors import TaskError, UnknownNameError

SPLITS = ("search", "validation", "test")
"""The three disjoint sets of items; `test` is read for reports only."""
ALL = "all"
"""Every item of a published benchmark's files, which the three splits share among them; for reports only."""

_ADDED = ("classes", "metric", "solution")  # fields that came later: ids made before are those of items without them
_APART = ("group",)  # fields that say how items are counted and not what they are


@dataclass(frozen=True)
class Segment:
    """A named span of an item's context, in characters: ``context[start:end]``.

    RULER uses ``instruction`` (what is to be done with the text), ``example`` (the worked example), ``needle`` (a
    sentence or document that the answer rests on), ``distractor`` (a sentence or document like it that it does not
    rest on) and ``answer`` (a reference where it stands, inside its needle if there are needles). What none of them
    covers is haystack.
    """

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Item:
    """One sample: three pieces of text, what counts as right, and where it comes from.

    Attributes:
        task: Name of the task, for example ``"ruler:vt"``.
        index: Number of the item within its task, split and length.
        split: One of `SPLITS`.
        length: Target length in tokens that the item was made for, generated tokens included.
        seed: Base seed of the run (not the item's own seed, which `item_seed` derives from it).
        context: The compressible text; worked examples belong to it.
        question: What is asked; compressed only in the query-aware regime.
        answer_prefix: Text that the answer starts with, put after the template's tail.
        references: The right answers, in the order in which they appear in the context.
        max_new_tokens: Limit of the generated answer.
        segments: Where in the context the important parts are.
        document: Items that share a document share this name (clusters for the statistics); "" if none do.
        source: SHA-256 of the text that the context was cut from; "" if it was made up.
        stop: Strings at which generation ends, besides the end-of-sequence token.
        chat: Whether the model's chat template is used when it has one.
        alternatives: True if the references are aliases, any one of which is a whole answer.
        classes: Names that a classification chooses from; () for other tasks.
        metric: Name of the item's own metric, where items of one task differ in it.
        solution: All that the model should write, its first space included, where the references are only its end; else
            "".
        group: Items that were made from one sample or document share this name, whatever their lengths; "" where
            `document` says all. It is no part of the id.
    """

    task: str
    index: int
    split: str
    length: int
    seed: int
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    segments: tuple[Segment, ...] = ()
    document: str = ""
    source: str = ""
    stop: tuple[str, ...] = ()
    chat: bool = True
    alternatives: bool = False
    classes: tuple[str, ...] = ()
    metric: str = ""
    solution: str = ""
    group: str = ""

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) of every field but the group, texts included: two items with one id are the same item."""
        told = {name: value for name, value in dataclasses.asdict(self).items() if name not in _APART}
        fields = {name: value for name, value in told.items() if value or name not in _ADDED}
        text = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def reference_texts(self) -> tuple[str, ...]:
        """The texts whose likelihood may be measured (the best counts): the solution, else one for each alias, or one.

        They continue the answer prefix, so each starts with a space unless the prefix is empty or ends in
        one.
        """
        if self.solution:
            return (self.solution,)
        lead = "" if not self.answer_prefix or self.answer_prefix[-1].isspace() else " "
        answers = self.references if self.alternatives else (", ".join(self.references),)
        return tuple(lead + answer for answer in answers)

    @property
    def reference_text(self) -> str:
        """The first of `reference_texts`: the solution, all references joined by ", ", or the first alias."""
        return self.reference_texts[0]


@dataclass(frozen=True)
class Usable:
    """How many items of a task there are at a length: those that can be made, and those passed over on the way.

    Attributes:
        items: That can be made.
        too_long: That were left out because they do not fit.
        cut: Of those that can be made, how many are cut to fit.
        repeated: Entries of the data that repeat another and count once.
    """

    items: int
    too_long: int = 0
    cut: int = 0
    repeated: int = 0

    @property
    def looked_at(self) -> int:
        """Of how many items of the data it was asked whether they fit."""
        return self.items + self.too_long


BOTH_REGIMES = ("agnostic", "aware")


class Task(Protocol):
    """A source of items and their metric.

    `item` must be a pure function of its arguments: the same item on every machine, whatever was asked
    before.
    """

    @property
    def name(self) -> str:
        """``family:task``, for example ``"ruler:niah_single_1"``."""

    @property
    def max_new_tokens(self) -> int:
        """Limit of the generated answer, in tokens."""

    @property
    def missing(self) -> str:
        """What the task needs and was not given, and how to give it, as half a sentence; "" if it needs nothing."""

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that its prompts can be measured in: both, unless context and question come in one piece."""

    def size(self, split: str) -> int | None:
        """The most items that a split can have; None if items are made on demand, without end."""

    def usable(self, most: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Usable:
        """How many items can be made, looking for no more than `most`; arguments and errors as of `item`."""

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item.

        Args:
            index: Which one, from 0.
            split: One of `SPLITS`; items of different splits share no answer and no source text.
            length: Tokens that prompt and generated answer may take together.
            seed: Base seed of the run.
            tokenizer: The model's tokenizer; it decides how much text fits.

        Raises:
            TaskError: The length is too short for the task, the split has no such item, or the task's material
                is missing or cannot be read.
            UnknownNameError: There is no such split.
        """

    def score(self, answer: str, item: Item) -> float:
        """How good a generated answer is, from 0 to 1."""


def item_seed(base: int, split: str, task: str, length: int, index: int) -> int:
    """Derive the seed of one item; it is the same on every machine and under every Python hash seed.

    Args:
        base: Base seed of the run.
        split: One of `SPLITS`.
        task: Name of the task.
        length: Target length in tokens.
        index: Number of the item.

    Returns:
        An integer of 64 bits for `random.Random`.
    """
    text = json.dumps([base, split, task, length, index], ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


def split_number(split: str) -> int:
    """Position of a split in `SPLITS`.

    Raises:
        UnknownNameError: There is no such split.
    """
    if split not in SPLITS:
        hint = "Items that are made on demand have no last one; all is for a benchmark's files." if split == ALL else ""
        raise UnknownNameError("split", split, SPLITS, hint)
    return SPLITS.index(split)


def check_request(index: int, split: str, length: int) -> None:
    """Refuse arguments of `Task.item` that mean nothing.

    Raises:
        TaskError: The index is negative or the length is not positive.
        UnknownNameError: There is no such split.
    """
    split_number(split)
    if index < 0:
        raise TaskError(f"Item {index} was asked for, but items are numbered from 0; use 0 or more.")
    if length < 1:
        raise TaskError(f"A length of {length} tokens was asked for; use a positive number.")
