"""Questions about documents, cut so that no two splits share a question or a document. Reads no file.

Documents that must stay together (an article's paragraphs, the paragraphs that one question rests on, and
whatever these share with others) form a group, and a whole group belongs to one split. The rest follows the first
question that lists it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachecraft.tasks.task import SPLITS


@dataclass(frozen=True)
class Asked:
    """A question about the documents of a `Block`.

    Attributes:
        text: The question.
        answers: Aliases of the right answer, at least one.
        gold: Which of the block's documents it rests on, at least one.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """Documents that come together and the questions about them.

    Attributes:
        documents: Their texts.
        asked: The questions.
        together: Whether all documents belong in one split (an article), or only those that a question rests on.
    """

    documents: tuple[str, ...]
    asked: tuple[Asked, ...]
    together: bool


@dataclass(frozen=True)
class Question:
    """A question, with its documents as numbers in `QuestionSet.documents`.

    Attributes:
        text: The question.
        answers: Aliases of the right answer.
        gold: What it rests on.
        near: Documents of its block besides, in the same split.
        group: Name shared by the questions whose documents belong together.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...]
    group: str


@dataclass(frozen=True)
class QuestionSplit:
    """The questions and the documents of one split, none of them in another."""

    questions: tuple[Question, ...]
    documents: tuple[int, ...]


@dataclass(frozen=True)
class QuestionSet:
    """All questions and documents.

    Attributes:
        documents: Every different document.
        splits: In the order of `SPLITS`.
        groups: How many groups hold questions; a split without one is empty.
        sha256: Hash of everything that was read.
    """

    documents: tuple[str, ...]
    splits: tuple[QuestionSplit, ...]
    groups: int
    sha256: str


def cut_by_split(blocks: Sequence[Block]) -> QuestionSet:
    """Number the documents, each once, and share groups among the splits so that each gets about as many questions."""
    texts = dict.fromkeys(text for block in blocks for text in block.documents)
    numbers = {text: number for number, text in enumerate(texts)}
    documents = tuple(numbers)
    roots = _roots(blocks, numbers)
    asked: Counter[int] = Counter()
    for block in blocks:
        asked.update(roots[numbers[block.documents[each.gold[0]]]] for each in block.asked)
    names = {root: hashlib.sha256(documents[root].encode()).hexdigest() for root in asked}
    split_of = _shared_out(asked, names)
    of_document = _follow(blocks, numbers, roots, split_of)
    questions: dict[Question, int] = {}  # the same question may be in two files that were named
    for block in blocks:
        members = [numbers[text] for text in block.documents]
        for each in block.asked:
            gold = tuple(dict.fromkeys(members[place] for place in each.gold))
            split = of_document[gold[0]]
            near = dict.fromkeys(each for each in members if each not in gold and of_document[each] == split)
            questions[Question(each.text, each.answers, gold, tuple(near), names[roots[gold[0]]])] = split
    splits = tuple(
        QuestionSplit(
            tuple(question for question, split in questions.items() if split == number),
            tuple(document for document, split in enumerate(of_document) if split == number),
        )
        for number in range(len(SPLITS))
    )
    return QuestionSet(documents, splits, len(asked), _hash(blocks))


def _roots(blocks: Sequence[Block], numbers: dict[str, int]) -> list[int]:
    """For each document the smallest number in its group."""
    above = list(range(len(numbers)))

    def root(number: int) -> int:
        while above[number] != number:
            above[number] = above[above[number]]
            number = above[number]
        return number

    def join(members: Iterable[int]) -> None:
        tops = {root(member) for member in members}
        for top in tops:
            above[top] = min(tops)

    for block in blocks:
        members = [numbers[text] for text in block.documents]
        for each in block.asked:
            join(members[place] for place in each.gold)
        if block.together:
            join(members)
    return [root(number) for number in range(len(above))]


def _shared_out(asked: Counter[int], names: dict[int, str]) -> dict[int, int]:
    """The split of each group: the largest first, each to the split that has the fewest questions."""
    filled = [0] * len(SPLITS)
    split_of: dict[int, int] = {}
    for root in sorted(asked, key=lambda each: (-asked[each], names[each])):
        split_of[root] = filled.index(min(filled))
        filled[split_of[root]] += asked[root]
    return split_of


def _follow(
    blocks: Sequence[Block], numbers: dict[str, int], roots: Sequence[int], split_of: dict[int, int]
) -> list[int]:
    """The split of each document: its group's, else that of the first block which lists it."""
    found = [split_of.get(root, -1) for root in roots]
    for turn, block in enumerate(blocks):
        members = [numbers[text] for text in block.documents]
        leaders = [found[members[each.gold[0]]] for each in block.asked]
        split = leaders[0] if leaders else turn % len(SPLITS)
        for member in members:
            if found[member] < 0:
                found[member] = split
    return found


def _hash(blocks: Sequence[Block]) -> str:
    state = hashlib.sha256()
    for block in blocks:
        asked = [[each.text, each.answers, each.gold] for each in block.asked]
        state.update(json.dumps([block.documents, asked, block.together]).encode())
    return state.hexdigest()
