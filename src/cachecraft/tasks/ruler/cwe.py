"""RULER's common words extraction (Hsieh et al., 2024, arXiv 2404.06654): which ten words come most often.

A numbered list names ten words many times and other words a few times. A worked example with a short list of its
own comes first, in the context.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from random import Random

from cachecraft.chat import Tokenizer
from cachecraft.tasks.fitting import fit_item
from cachecraft.tasks.ruler.made_up import MadeUpTask
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Segment, check_request, item_seed, split_number

_OPENING = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
_QUESTION = "Question: What are the 10 most common words in the above list?"
_ANSWER_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
_COMMON = 10


@dataclass(frozen=True)
class _Sizes:
    """How often words come: common and others in the list, the same in the example, and the example's others."""

    common: int
    others: int
    shown_common: int
    shown_others: int
    shown: int


_LONG = _Sizes(common=30, others=3, shown_common=10, shown_others=3, shown=30)
_SHORT = _Sizes(common=6, others=1, shown_common=3, shown_others=1, shown=10)
_LONG_FROM = 4096


@dataclass(frozen=True)
class CountedWords:
    """A list in which ten words come more often than the others.

    Attributes:
        common: The ten.
        others: As many others as a list may need.
        repeats: How often each of the common words comes, and each of the others.
        order: Seed of the order in the list.
    """

    common: tuple[str, ...]
    others: tuple[str, ...]
    repeats: tuple[int, int]
    order: int

    def text(self, units: int) -> tuple[str, list[tuple[str, int, int]]]:
        """The numbered list with so many of the others, and each common word in it with its span in characters."""
        words = [*self.common * self.repeats[0], *self.others[:units] * self.repeats[1]]
        Random(self.order).shuffle(words)
        common = set(self.common)
        pieces: list[str] = []
        spans: list[tuple[str, int, int]] = []
        length = 0
        for number, word in enumerate(words, start=1):
            piece = f"{number}. {word}"
            if word in common:
                spans.append((word, length + len(piece) - len(word), length + len(piece)))
            pieces.append(piece)
            length += len(piece) + 1
        return " ".join(pieces), spans

    def worked(self) -> str:
        """The whole problem, of all its words, with its answer: an example."""
        answer = " ".join(f"{number}. {word}" for number, word in enumerate(self.common, start=1))
        return f"{_OPENING}{self.text(len(self.others))[0]}\n{_QUESTION}{_ANSWER_PREFIX}{answer}\n"


@dataclass(frozen=True)
class CommonWords(MadeUpTask):
    """Ten common words among others.

    Attributes:
        sources: Where the words come from, and whether all items share one order.
        name: Name of the task.
        max_new_tokens: Limit of the generated answer.
    """

    sources: Sources = field(default_factory=Sources)
    name: str = "ruler:cwe"
    max_new_tokens: int = 120

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`.

        Common words, the example's too, belong to the split and none contains another, so that an answer never
        matches two of them by naming one. The others come from all words.
        """
        check_request(index, split, length)
        rng = Random(item_seed(seed, split, self.name, length, index))
        asked, shown = self._lists(rng, split_number(split), _LONG if length >= _LONG_FROM else _SHORT, seed)
        example = shown.worked()

        def draft(units: int) -> Item:
            text, spans = asked.text(units)
            start = len(example) + len(_OPENING)
            return Item(
                task=self.name,
                index=index,
                split=split,
                length=length,
                seed=seed,
                context=f"{example}{_OPENING}{text}\n",
                question=_QUESTION,
                answer_prefix=_ANSWER_PREFIX,
                references=tuple(dict.fromkeys(word for word, _, _ in spans)),
                max_new_tokens=self.max_new_tokens,
                segments=(
                    Segment("example", 0, len(example)),
                    Segment("instruction", len(example), start - 1),
                    *(Segment("answer", low + start, high + start) for _, low, high in spans),
                ),
            )

        return fit_item(draft, tokenizer, most=len(asked.others))

    def _lists(self, rng: Random, split: int, sizes: _Sizes, seed: int) -> tuple[CountedWords, CountedWords]:
        """The item's list and the example's, which share no word."""
        pools = self.sources.words.listed
        common = _apart(rng, pools[split], 2 * _COMMON)
        others = [word for word in chain.from_iterable(pools) if word not in set(common)]
        rng.shuffle(others)
        own = (rng.getrandbits(64), rng.getrandbits(64))
        orders = (seed, seed) if self.sources.ruler_compat else own
        return (
            CountedWords(
                tuple(common[:_COMMON]), tuple(others[sizes.shown :]), (sizes.common, sizes.others), orders[0]
            ),
            CountedWords(
                tuple(common[_COMMON:]),
                tuple(others[: sizes.shown]),
                (sizes.shown_common, sizes.shown_others),
                orders[1],
            ),
        )


def _apart(rng: Random, words: tuple[str, ...], count: int) -> list[str]:
    """Draw words none of which contains another."""
    found: list[str] = []
    while len(found) < count:
        word = rng.choice(words)
        low = word.lower()
        if not any(low in other.lower() or other.lower() in low for other in found):
            found.append(word)
    return found
