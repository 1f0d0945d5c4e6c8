"""RULER's eight needle-in-a-haystack tasks (Hsieh et al., 2024, arXiv 2404.06654).

Sentences that give a key its value are hidden in noise lines, in an essay, or among sentences of their own
kind; the question names one or several keys. Unlike the original, each item draws its own places, order and
essay offset, unless `Sources.ruler_compat` asks for the original's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from cachecraft.chat import Tokenizer
from cachecraft.tasks.fitting import fit_item
from cachecraft.tasks.haystack import NOISE_LINE, weave
from cachecraft.tasks.ruler.made_up import MadeUpTask
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Segment, check_request, item_seed, split_number
from cachecraft.tasks.words import distinct, number_value, uuid_key, uuid_value, word_key

_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "What are all the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
)
_ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "What is the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text is",
)
_DEPTHS = 40


@dataclass(frozen=True)
class Needle:
    """One hidden fact.

    Attributes:
        kind: ``"numbers"`` or ``"uuids"``.
        key: What the value belongs to.
        value: What is to be found.
        asked: Whether the question asks for it.
    """

    kind: str
    key: str
    value: str
    asked: bool

    @property
    def sentence(self) -> str:
        """The fact in RULER's words."""
        return _NEEDLE.format(kind=self.kind, key=self.key, value=self.value)


@dataclass(frozen=True)
class Wording:
    """The fixed texts around a haystack.

    Attributes:
        opening: The context's first line.
        question: The question.
        answer_prefix: How the answer starts.
    """

    opening: str
    question: str
    answer_prefix: str


def wording(kind: str, queries: list[str], answers: int) -> Wording:
    """RULER's texts, in the singular if there is one answer.

    Args:
        kind: ``"numbers"`` or ``"uuids"``.
        queries: The keys asked for.
        answers: How many values answer the question.
    """
    query = ", ".join(queries[:-1]) + ", and " + queries[-1] if len(queries) > 1 else queries[0]
    texts, kind = (_ONE, kind.removesuffix("s")) if answers == 1 else (_MANY, kind)
    return Wording(*(text.format(kind=kind, query=query) for text in texts))


Placed = tuple[Needle, tuple[int, int]]
"""A needle and its span in the haystack, in characters."""


@dataclass(frozen=True)
class Haystack:
    """A haystack with its needles, of any number of units (lines or words).

    Attributes:
        lay: From a number of units to the text and its needles, in their order in it.
        between: Text of the units from one number to a larger one, where units differ much.
    """

    lay: Callable[[int], tuple[str, list[Placed]]]
    between: Callable[[int, int], str] | None = None


@dataclass(frozen=True)
class NiahTask(MadeUpTask):
    """One of the eight tasks, see the table in `niah_tasks`, or a needle at a given depth.

    Attributes:
        name: ``"ruler:niah_…"``.
        haystack: Noise lines, essay words, or lines that are needles themselves.
        keys_are: Adjective-noun words or uuids.
        values_are: Numbers of 7 digits or uuids.
        keys: How many keys the inserted needles have.
        values: How many values each key has.
        queries: How many keys are asked for.
        depth: Per cent of the essay's sentences that stand before the needles; None draws a place for each.
        sources: Where the essay comes from, and whether all items share one order and one start of the essay.
        max_new_tokens: Limit of the generated answer.
    """

    name: str
    haystack: Literal["noise", "essay", "needles"]
    keys_are: Literal["words", "uuids"] = "words"
    values_are: Literal["numbers", "uuids"] = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    depth: int | None = None
    sources: Sources = field(default_factory=Sources)
    max_new_tokens: int = 128

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`."""
        check_request(index, split, length)
        rng = Random(item_seed(seed, split, self.name, length, index))
        number = split_number(split)
        needles, queries = self._needles(rng, number, seed)
        haystack = self._haystack(rng, number, needles)
        texts = wording(self.values_are, queries, self.queries * self.values)
        source = self.sources.essay.sha256 if self.haystack == "essay" else ""

        def draft(units: int) -> Item:
            text, placed = haystack.lay(units)
            return Item(
                task=self.name,
                index=index,
                split=split,
                length=length,
                seed=seed,
                context=f"{texts.opening}{text}\n",
                question=texts.question,
                answer_prefix=texts.answer_prefix,
                references=tuple(needle.value for needle, _ in placed if needle.asked),
                max_new_tokens=self.max_new_tokens,
                segments=_segments(placed, texts.opening),
                source=source,
            )

        return fit_item(draft, tokenizer, between=haystack.between)

    def _key(self, rng: Random, split: int) -> str:
        return word_key(rng, split, self.sources.words) if self.keys_are == "words" else uuid_key(rng, split)

    def _value(self, rng: Random) -> str:
        return number_value(rng, 7) if self.values_are == "numbers" else uuid_value(rng)

    def _needles(self, rng: Random, split: int, seed: int) -> tuple[list[Needle], list[str]]:
        keys = distinct(lambda: self._key(rng, split), self.keys)
        values = distinct(lambda: self._value(rng), self.keys * self.values)
        queries = rng.sample(keys, self.queries)
        owners = [key for key in keys for _ in range(self.values)]
        needles = [Needle(self.values_are, k, v, k in queries) for k, v in zip(owners, values, strict=True)]
        (Random(seed) if self.sources.ruler_compat else rng).shuffle(needles)
        return needles, queries

    def _haystack(self, rng: Random, split: int, needles: list[Needle]) -> Haystack:
        """Settle everything that does not depend on the number of units."""
        if self.haystack == "essay":
            region = self.sources.essay.regions[split]
            offset = 0 if self.sources.ruler_compat else rng.choice(region.starts())
            shares = [depth / (_DEPTHS - 1) for depth in sorted(rng.sample(range(_DEPTHS), len(needles)))]
            if self.depth is not None:
                shares = [self.depth / 100] * len(needles)

            def essay(units: int) -> tuple[str, list[Placed]]:
                words, places = region.passage(offset, units)
                chosen = [places[round(share * (len(places) - 1))] for share in shares]
                return _laid(words, chosen, needles, " ")

            return Haystack(essay, lambda low, high: " " + " ".join(region.passage(offset + low, high - low)[0]))

        # A share of the way in, not a line number, so that one draw serves every length that the fitting
        # tries.
        shares = sorted(rng.random() for _ in needles)
        filler = self._filler(rng, split, needles)

        def lines(units: int) -> tuple[str, list[Placed]]:
            return _laid(filler(units), [int(share * (units + 1)) for share in shares], needles, "\n")

        return Haystack(lines)

    def _filler(self, rng: Random, split: int, needles: list[Needle]) -> Callable[[int], list[str]]:
        if self.haystack == "noise":
            return lambda units: [NOISE_LINE] * units
        taken = {needle.key for needle in needles} | {needle.value for needle in needles}
        found: list[str] = []

        def more(units: int) -> list[str]:
            while len(found) < units:
                key, value = self._key(rng, split), self._value(rng)
                if key not in taken and value not in taken:
                    taken.update((key, value))
                    found.append(Needle(self.values_are, key, value, False).sentence)
            return found[:units]

        return more


def niah_tasks(sources: Sources) -> tuple[NiahTask, ...]:
    """The eight tasks of RULER's table."""
    return (
        NiahTask("ruler:niah_single_1", "noise", sources=sources),
        NiahTask("ruler:niah_single_2", "essay", sources=sources),
        NiahTask("ruler:niah_single_3", "essay", values_are="uuids", sources=sources),
        NiahTask("ruler:niah_multikey_1", "essay", keys=4, sources=sources),
        NiahTask("ruler:niah_multikey_2", "needles", sources=sources),
        NiahTask("ruler:niah_multikey_3", "needles", keys_are="uuids", values_are="uuids", sources=sources),
        NiahTask("ruler:niah_multivalue", "essay", values=4, sources=sources),
        NiahTask("ruler:niah_multiquery", "essay", keys=4, queries=4, sources=sources),
    )


def _laid(units: list[str], places: list[int], needles: list[Needle], glue: str) -> tuple[str, list[Placed]]:
    text, spans = weave(units, [(p, n.sentence) for p, n in zip(places, needles, strict=True)], glue)
    return text, list(zip(needles, spans, strict=True))


def _segments(placed: list[Placed], opening: str) -> tuple[Segment, ...]:
    segments = [Segment("instruction", 0, len(opening.rstrip()))]
    for needle, (start, end) in placed:
        start, end = start + len(opening), end + len(opening)
        segments.append(Segment("needle" if needle.asked else "distractor", start, end))
        if needle.asked:
            # The sentence ends with the value and a full stop.
            segments.append(Segment("answer", end - 1 - len(needle.value), end - 1))
    return tuple(segments)
