"""Where an answer ends: at the first of its task's stop strings, looked for in its text as tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, eq=False)
class Ending:
    """What ends an answer besides the model's stop tokens.

    Attributes:
        tokenizer: The model's tokenizer.
        stops: Stop strings; none of them empty.
    """

    tokenizer: Any
    stops: tuple[str, ...] = ()

    def text(self, ids: Sequence[int]) -> str:
        """The answer up to the first stop string."""
        text = self._decode(ids)
        starts = [text.index(stop) for stop in self.stops if stop in text]
        return text[: min(starts, default=len(text))]

    def place(self, ids: Sequence[int], new: int) -> int | None:
        """How many of the tokens make the answer: the fewest whose text no later token can change any more.

        Args:
            ids: What has been answered so far.
            new: How many of these tokens were not looked at before.

        Returns:
            A number of tokens, those of the stop string included; None if the answer goes on.
        """
        if not self.stops or new < 1:
            return None
        # A stop string has no more tokens than bytes; most of the time its end is in none of the last tokens.
        tail = self._decode(ids[-(new + 2 * self._longest) :])
        if not any(stop in tail for stop in self.stops):
            return None
        return next((n for n in range(len(ids) - new + 1, len(ids) + 1) if self._complete(ids[:n])), None)

    def _complete(self, ids: Sequence[int]) -> bool:
        # Another stop string may begin before the one that was found and end after it.
        rest = len(self._decode(ids)) - len(self.text(ids))
        return rest >= max(map(len, self.stops))

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @cached_property
    def _longest(self) -> int:
        return max(len(stop.encode()) for stop in self.stops)
