"""What RULER's made-up tasks share: no end of items, no material to be given, and how answers are scored."""

from __future__ import annotations

from typing import ClassVar

from cachecraft.chat import Tokenizer
from cachecraft.tasks.metrics import string_match_all
from cachecraft.tasks.task import BOTH_REGIMES, Item, Usable, split_number


class MadeUpTask:
    """Part of a task whose items are made from random draws.

    Attributes:
        missing: It needs nothing.
        regimes: Context and question are apart.
    """

    missing: ClassVar[str] = ""
    regimes: ClassVar[tuple[str, ...]] = BOTH_REGIMES

    def size(self, split: str) -> int | None:
        """There is no end of items."""
        split_number(split)
        return None

    def usable(self, most: int, *, split: str, length: int, seed: int, tokenizer: Tokenizer) -> Usable:
        """As many as are wanted."""
        split_number(split)
        return Usable(most)

    def score(self, answer: str, item: Item) -> float:
        """Share of the references that the answer names."""
        return string_match_all(answer, item.references)
