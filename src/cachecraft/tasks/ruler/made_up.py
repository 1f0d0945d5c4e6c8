"""What RULER's made-up tasks share: no end of items, no material to be given, and how answers are scored."""

from __future__ import annotations

from typing import ClassVar

from cachecraft.tasks.metrics import string_match_all
from cachecraft.tasks.task import Item, split_number


class MadeUpTask:
    """Part of a task whose items are made from random draws.

    Attributes:
        missing: It needs nothing.
    """

    missing: ClassVar[str] = ""

    def size(self, split: str) -> int | None:
        """There is no end of items."""
        split_number(split)
        return None

    def score(self, answer: str, item: Item) -> float:
        """Share of the references that the answer names."""
        return string_match_all(answer, item.references)
