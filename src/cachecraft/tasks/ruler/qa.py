"""RULER's question answering (Hsieh et al., 2024, arXiv 2404.06654): qa_1 from SQuAD, qa_2 from HotpotQA.

The documents that hold the answer stand among others: first those of the same article or question, then any, as
many as fit. The data are the user's; this file holds none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import ClassVar

from cachecraft.chat import Tokenizer, frame
from cachecraft.errors import TaskError
from cachecraft.tasks.fitting import fit_item
from cachecraft.tasks.metrics import string_match_part
from cachecraft.tasks.prompt import render
from cachecraft.tasks.question_files import FORMS, Form
from cachecraft.tasks.questions import Question, QuestionSet, QuestionSplit
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import BOTH_REGIMES, Item, Segment, Usable, check_request, item_seed, split_number

_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
_OPENING = f"{_INSTRUCTION}\n\nThe following are given documents.\n\n"
_QUESTION = f"{_INSTRUCTION}\n\nQuestion: "
_ANSWER_PREFIX = " Answer:"
_FILES = {"squad": "dev-v2.0.json", "hotpot": "hotpot_dev_distractor_v1.json"}


@dataclass(frozen=True)
class QaTask:
    """One of the two tasks.

    Attributes:
        name: ``"ruler:qa_1"`` or ``"ruler:qa_2"``.
        form: Of the data.
        sources: Where the data come from, and whether all items share one order.
        max_new_tokens: Limit of the generated answer.
    """

    name: str
    form: Form
    sources: Sources = field(default_factory=Sources)
    max_new_tokens: int = 32
    regimes: ClassVar[tuple[str, ...]] = BOTH_REGIMES

    @property
    def missing(self) -> str:
        """What to give if there are no questions of this form."""
        if self.sources.offers(self.form):
            return ""
        named = f", and {', '.join(self.sources.data)} has none" if self.sources.data else ""
        file = _FILES[self.form]
        return f"needs {FORMS[self.form]}'s questions{named}: give its file with --data ({file}), or --data hub"

    def size(self, split: str) -> int | None:
        """How many questions the data has for a split; fewer where some do not fit the length."""
        return len(self._data().splits[split_number(split)].questions)

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`.

        The questions of a split come in an order drawn from the base seed, the same for every length; a question
        whose own documents do not fit the length is passed over.
        """
        check_request(index, split, length)
        data = self._data()
        blank = self._blank(index, split, length, seed)
        question = _question(data, blank, tokenizer)
        rng = Random(item_seed(seed, split, self.name, length, index))
        pool = _pool(rng, question, data.splits[split_number(split)])
        own = rng.getrandbits(64)
        order = seed if self.sources.ruler_compat else own

        def draft(units: int) -> Item:
            documents = pool[:units]
            Random(order).shuffle(documents)
            return _asking(blank, data, question, documents)

        def between(low: int, high: int) -> str:
            return "".join(_document(number, data.documents[each]) for number, each in enumerate(pool[low:high], low))

        return fit_item(draft, tokenizer, least=len(question.gold), most=len(pool), between=between)

    def usable(self, most: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Usable:
        """How many questions there are whose own documents fit the length."""
        check_request(0, split, length)
        fitting = _fitting(self._data(), self._blank(0, split, length, seed), tokenizer)
        return Usable(len(list(islice(fitting, most))))

    def score(self, answer: str, item: Item) -> float:
        """1 if the answer holds any of the aliases."""
        return string_match_part(answer, item.references)

    def _blank(self, index: int, split: str, length: int, seed: int) -> Item:
        """An item that asks nothing yet."""
        return Item(
            task=self.name,
            index=index,
            split=split,
            length=length,
            seed=seed,
            context="",
            question="",
            answer_prefix=_ANSWER_PREFIX,
            references=(),
            max_new_tokens=self.max_new_tokens,
            source=self._data().sha256,
            alternatives=True,
        )

    def _data(self) -> QuestionSet:
        data = self.sources.squad if self.form == "squad" else self.sources.hotpot
        if data is None:
            raise TaskError(f"{self.name} cannot be made: it {self.missing}.")
        return data


def _ordered(data: QuestionSet, blank: Item) -> list[Question]:
    """The questions of a split, in the order that the base seed gives them."""
    ordered = list(data.splits[split_number(blank.split)].questions)
    Random(item_seed(blank.seed, blank.split, blank.task, 0, 0)).shuffle(ordered)
    return ordered


def _fitting(data: QuestionSet, blank: Item, tokenizer: Tokenizer) -> Iterator[Question]:
    """Those of a split's questions, in order, whose own documents fit the length."""
    around = frame(tokenizer)
    for question in _ordered(data, blank):
        least = render(tokenizer, _asking(blank, data, question, question.gold), around)
        if len(least.ids) + blank.max_new_tokens <= blank.length:
            yield question


def _question(data: QuestionSet, blank: Item, tokenizer: Tokenizer) -> Question:
    """The question of the item's number among those of its split that fit its length."""
    fitting = _fitting(data, blank, tokenizer)
    ordered = _ordered(data, blank)
    held = len(list(islice(fitting, blank.index)))
    if not ordered:
        raise TaskError(
            f"The data for {blank.task} holds no question for split {blank.split}: its questions rest on {data.groups} "
            "unrelated groups of documents, and each split needs one; give more data."
        )
    question = next(fitting, None)
    if question is None and held:
        raise TaskError(
            f"The data for {blank.task} holds {held} questions for split {blank.split} that fit {blank.length} tokens, "
            f"so there is no item {blank.index}; ask for at most {held} samples or a greater length, or give more data."
        )
    return question or ordered[0]  # where none fits, the fitting will say how long an item has to be


def _pool(rng: Random, question: Question, part: QuestionSplit) -> list[int]:
    """All documents that may be shown, what is needed first, then what is near, then the split's others."""
    near = rng.sample(question.near, len(question.near))
    taken = {*question.gold, *near}
    others = [document for document in part.documents if document not in taken]
    rng.shuffle(others)
    return [*question.gold, *near, *others]


def _document(number: int, text: str) -> str:
    return f"Document {number + 1}:\n{text}\n\n"


def _asking(blank: Item, data: QuestionSet, question: Question, documents: Sequence[int]) -> Item:
    """The item that shows these documents, in this order."""
    pieces = [_OPENING]
    segments = [Segment("instruction", 0, len(_OPENING.rstrip()))]
    length = len(_OPENING)
    for number, document in enumerate(documents):
        text = data.documents[document]
        pieces.append(_document(number, text))
        end = length + len(pieces[-1]) - 2
        segments.append(Segment("needle" if document in question.gold else "distractor", length, end))
        if document in question.gold:
            # The first alias that the document holds; an answer such as "yes" stands in none.
            answer = next((each for each in question.answers if each in text), "")
            start = end - len(text) + text.find(answer)
            segments += [Segment("answer", start, start + len(answer))] if answer else []
        length += len(pieces[-1])
    return replace(
        blank,
        context="".join(pieces),
        question=f"{_QUESTION}{question.text}",
        references=question.answers,
        segments=tuple(segments),
        document=question.group,
    )
