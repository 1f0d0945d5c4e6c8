"""RULER's variable tracking (Hsieh et al., 2024, arXiv 2404.06654): which variables share a value.

Lines like ``VAR ABCDE = 12345`` and ``VAR FGHIJ = VAR ABCDE`` are hidden in noise, in order. A worked example
with noise of its own comes first, in the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from cachecraft.chat import Tokenizer, token_ids
from cachecraft.tasks.fitting import fit_item, largest_fitting
from cachecraft.tasks.haystack import NOISE_LINE, weave
from cachecraft.tasks.ruler.made_up import MadeUpTask
from cachecraft.tasks.task import Item, Segment, check_request, item_seed, split_number
from cachecraft.tasks.words import distinct, name_key, number_value

_OPENING = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
_QUESTION = "Question: Find all variables that are assigned the value {query} in the text above."
_ANSWER_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, "
    "{n} variables are assigned the value {query}, they are: "
)
_EXAMPLE_TOKENS = 500


@dataclass(frozen=True)
class Chain:
    """A value and the variables that get it one from the other, with their places in the noise.

    Attributes:
        names: The variables, in the order of assignment.
        value: The number assigned to the first.
        shares: How far into the noise each assignment stands, from 0 to 1, ascending.
    """

    names: tuple[str, ...]
    value: str
    shares: tuple[float, ...]

    def lines(self) -> list[str]:
        """The assignments in RULER's words."""
        sources = (self.value, *(f"VAR {name}" for name in self.names))
        return [f"VAR {name} = {source}" for name, source in zip(self.names, sources, strict=False)]

    def text(self, units: int) -> tuple[str, list[tuple[int, int]]]:
        """Opening, noise and assignments, and the span of each assignment in characters."""
        places = [int(share * (units + 1)) for share in self.shares]
        body, spans = weave([NOISE_LINE] * units, list(zip(places, self.lines(), strict=True)), "\n")
        return f"{_OPENING}{body}\n", [(start + len(_OPENING), end + len(_OPENING)) for start, end in spans]

    def question(self) -> str:
        """The question about the value."""
        return _QUESTION.format(query=self.value)

    def answer_prefix(self) -> str:
        """How the answer starts."""
        return _ANSWER_PREFIX.format(n=len(self.names), query=self.value)

    def worked(self, units: int) -> str:
        """The whole problem with its answer, as an example."""
        return f"{self.text(units)[0]}{self.question()}{self.answer_prefix()}{', '.join(self.names)}\n\n"


@dataclass(frozen=True)
class VariableTracking(MadeUpTask):
    """One chain in noise.

    Attributes:
        name: Name of the task.
        hops: Assignments after the first.
        max_new_tokens: Limit of the generated answer.
    """

    name: str = "ruler:vt"
    hops: int = 4
    max_new_tokens: int = 30

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`.

        The worked example takes at most 500 tokens and, so that short lengths are not mostly example, at most
        a quarter of the length, but always its question, its assignments and its answer.
        """
        check_request(index, split, length)
        rng = Random(item_seed(seed, split, self.name, length, index))
        number = split_number(split)
        chain, shown = self._chains(rng, number)
        example = _fitted_example(shown, min(_EXAMPLE_TOKENS, length // 4), tokenizer)

        def draft(units: int) -> Item:
            text, spans = chain.text(units)
            return Item(
                task=self.name,
                index=index,
                split=split,
                length=length,
                seed=seed,
                context=example + text,
                question=chain.question(),
                answer_prefix=chain.answer_prefix(),
                references=chain.names,
                max_new_tokens=self.max_new_tokens,
                segments=_segments(example, chain, spans),
            )

        return fit_item(draft, tokenizer)

    def _chains(self, rng: Random, split: int) -> tuple[Chain, Chain]:
        """The item's chain and the example's, which share neither value nor names."""
        values = distinct(lambda: number_value(rng, 5), 2)
        count = self.hops + 1
        names = (
            distinct(lambda: name_key(rng, split, 5), count),
            distinct(lambda: name_key(rng, split, 3), count),
        )
        asked, shown = (
            Chain(tuple(each), value, tuple(sorted(rng.random() for _ in each)))
            for each, value in zip(names, values, strict=True)
        )
        return asked, shown


def _fitted_example(chain: Chain, limit: int, tokenizer: Tokenizer) -> str:
    def tokens(units: int) -> int:
        return len(token_ids(tokenizer, chain.worked(units)))

    return chain.worked(largest_fitting(tokens, limit) if tokens(0) <= limit else 0)


def _segments(example: str, chain: Chain, spans: list[tuple[int, int]]) -> tuple[Segment, ...]:
    segments = [
        Segment("example", 0, len(example)),
        Segment("instruction", len(example), len(example) + len(_OPENING.rstrip())),
    ]
    for name, (start, end) in zip(chain.names, spans, strict=True):
        start, end = start + len(example), end + len(example)
        name_start = start + len("VAR ")
        segments.append(Segment("needle", start, end))
        segments.append(Segment("answer", name_start, name_start + len(name)))
    return tuple(segments)
