"""Needle in a haystack by depth: one number hidden in an essay at 0, 10, … 100 % of it (after Kamradt, 2023).

Each depth is a task, so that a table shows depths as rows and a sweep over lengths draws the map. Wording and answers
are those of RULER's single needle; the score is whether the exact number is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from cachecraft.chat import Tokenizer
from cachecraft.tasks.fitting import fit_item
from cachecraft.tasks.haystack import weave
from cachecraft.tasks.ruler.made_up import MadeUpTask
from cachecraft.tasks.ruler.niah import Needle, wording
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Segment, Task, check_request, item_seed, split_number
from cachecraft.tasks.words import number_value, word_key

DEPTHS = tuple(range(0, 101, 10))  # per cent of the haystack before the needle


@dataclass(frozen=True)
class NeedleTask(MadeUpTask):
    """The needle at one depth.

    Attributes:
        depth: Per cent of the haystack's sentences that stand before it.
        sources: Where the essay comes from.
        max_new_tokens: Limit of the generated answer.
    """

    depth: int
    sources: Sources = field(default_factory=Sources)
    max_new_tokens: int = 32

    @property
    def name(self) -> str:
        """``needle:50``."""
        return f"needle:{self.depth}"

    def item(self, index: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Item:
        """Make one item; see `Task.item`."""
        check_request(index, split, length)
        number = split_number(split)
        rng = Random(item_seed(seed, split, self.name, length, index))
        needle = Needle("numbers", word_key(rng, number, self.sources.words), number_value(rng, 7), asked=True)
        texts = wording("numbers", [needle.key], 1)
        region = self.sources.essay.regions[number]
        offset = rng.choice(region.starts())

        def draft(units: int) -> Item:
            words, places = region.passage(offset, units)
            at = places[round(self.depth / 100 * (len(places) - 1))]
            text, ((start, end),) = weave(words, [(at, needle.sentence)], " ")
            start, end = start + len(texts.opening), end + len(texts.opening)
            return Item(
                task=self.name,
                index=index,
                split=split,
                length=length,
                seed=seed,
                context=f"{texts.opening}{text}\n",
                question=texts.question,
                answer_prefix=texts.answer_prefix,
                references=(needle.value,),
                max_new_tokens=self.max_new_tokens,
                segments=(
                    Segment("instruction", 0, len(texts.opening.rstrip())),
                    Segment("needle", start, end),
                    Segment("answer", end - 1 - len(needle.value), end - 1),
                ),
                source=self.sources.essay.sha256,
            )

        return fit_item(
            draft, tokenizer, between=lambda low, high: " " + " ".join(region.passage(offset + low, high - low)[0])
        )


def needle_tasks(sources: Sources) -> tuple[Task, ...]:
    """One task for each depth."""
    return tuple(NeedleTask(depth, sources) for depth in DEPTHS)
