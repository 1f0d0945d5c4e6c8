"""RULER's frequent words extraction (Hsieh et al., 2024, arXiv 2404.06654): the three most frequent coded words.

Made-up words come as often as Zipf's law with exponent 2 says; the most frequent one is written as dots and is
not asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from cachecraft.chat import Tokenizer
from cachecraft.tasks.fitting import fit_item
from cachecraft.tasks.ruler.made_up import MadeUpTask
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Segment, check_request, item_seed, split_number
from cachecraft.tasks.words import coded_word, distinct

_OPENING = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
_QUESTION = (
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
_ANSWER_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
_DOTS = "..."
_ASKED = 3
_LETTERS = 6
_ZETA = math.pi**2 / 6
_LEAST = 53  # from here on the fourth rank always comes more often than the fifth


@dataclass(frozen=True)
class CodedText:
    """A vocabulary and an order.

    Attributes:
        words: By rank, the most frequent first.
        order: Seed of the order in the text.
    """

    words: tuple[str, ...]
    order: int

    def counts(self, units: int) -> list[int]:
        """How often each word comes in a text of about `units` words: int(units / (rank² zeta(2)))."""
        return [int(units * rank**-2 / _ZETA) for rank in range(1, len(self.words) + 1)]

    def text(self, units: int) -> tuple[str, list[tuple[str, int, int]]]:
        """The text, and each place of a word that is asked for with its span in characters."""
        words = [word for word, count in zip(self.words, self.counts(units), strict=True) for _ in range(count)]
        Random(self.order).shuffle(words)
        asked = set(self.words[1 : 1 + _ASKED])
        spans: list[tuple[str, int, int]] = []
        length = 0
        for word in words:
            if word in asked:
                spans.append((word, length, length + len(word)))
            length += len(word) + 1
        return " ".join(words), spans


@dataclass(frozen=True)
class FrequentWords(MadeUpTask):
    """Three frequent words in a coded text.

    Attributes:
        sources: Whether all items share one order.
        name: Name of the task.
        max_new_tokens: Limit of the generated answer.
    """

    sources: Sources = field(default_factory=Sources)
    name: str = "ruler:fwe"
    max_new_tokens: int = 50

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`. Every coded word belongs to the split."""
        check_request(index, split, length)
        rng = Random(item_seed(seed, split, self.name, length, index))
        number = split_number(split)
        size = max((length - self.max_new_tokens) // 50, 1 + _ASKED)
        words = distinct(lambda: coded_word(rng, number, _LETTERS), size - 1)
        own = rng.getrandbits(64)
        coded = CodedText((_DOTS, *words), seed if self.sources.ruler_compat else own)

        def draft(units: int) -> Item:
            text, spans = coded.text(units)
            start = len(_OPENING)
            return Item(
                task=self.name,
                index=index,
                split=split,
                length=length,
                seed=seed,
                context=f"{_OPENING}{text}\n",
                question=_QUESTION,
                answer_prefix=_ANSWER_PREFIX,
                references=tuple(dict.fromkeys(word for word, _, _ in spans)),
                max_new_tokens=self.max_new_tokens,
                segments=(
                    Segment("instruction", 0, start - 1),
                    *(Segment("answer", low + start, high + start) for _, low, high in spans),
                ),
            )

        return fit_item(draft, tokenizer, least=_LEAST)
