"""Guesses the next tokens of greedy answers, so that several can be verified in one pass.

A policy that lost the answer makes a small model repeat itself up to the token limit; its next tokens are nearly
always a copy of something it, or another candidate, has written before. Guessing changes no answer: a guessed token
is kept only where the model, having seen the tokens before it, chooses the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 8  # tokens guessed at a time, at most
ORDERS = (5, 3, 2, 1)  # tokens that must match before a continuation is copied, tried in this order
UNSURE = 1  # tokens guessed at most where no more than the last token matches


class Drafter:
    """Guesses for each row by looking up its last tokens in its own text, then in what is shared by all rows."""

    def __init__(self, prompt: Sequence[int], hint: Sequence[int], rows: int) -> None:
        """Start with a common prompt.

        Args:
            prompt: The tokens before every row's answer.
            hint: A likely answer, such as the reference; may be empty.
            rows: Number of rows.
        """
        self._texts = [list(prompt) for _ in range(rows)]
        self._length = [1] * rows  # a wrong guess costs as much as a token; what proves right may grow
        common: dict[tuple[int, ...], int] = {}
        _index(common, prompt, 0)
        self._own = [dict(common) for _ in range(rows)]  # where the latest continuation of an n-gram begins
        self._shared: dict[tuple[int, ...], tuple[Sequence[int], int]] = {}
        self._share([*prompt[-max(ORDERS) :], *hint], 0)

    def guess(self, row: int, most: int) -> list[int]:
        """Up to `most` tokens that may come next in a row; empty when nothing like it was seen."""
        text = self._texts[row]
        length = min(self._length[row], most)
        if length < 1:
            return []
        for order in ORDERS:
            key = tuple(text[-order:])
            wanted = length if order > 1 else min(length, UNSURE)
            at = self._own[row].get(key)
            if at is not None:
                # A text that repeats itself goes on doing so, past the end of what is written.
                return [text[at + i % (len(text) - at)] for i in range(wanted)]
            source, at = self._shared.get(key, ((), 0))
            if at < len(source):
                return list(source[at : at + wanted])
        return []

    def record(self, row: int, tokens: Sequence[int], guessed: int, right: int) -> None:
        """Add the tokens that a row was found to go on with, and how many of `guessed` tokens were `right`."""
        text = self._texts[row]
        # The continuation of an n-gram must exist before it is looked up, so the newest one is indexed a turn later.
        before = len(text)
        text.extend(tokens)
        _index(self._own[row], text, before)
        self._share(text, before)
        if guessed:
            doubled = min(LONGEST, 2 * self._length[row])
            self._length[row] = doubled if right == guessed else max(1, right)

    def _share(self, text: Sequence[int], first: int) -> None:
        places: dict[tuple[int, ...], int] = {}
        _index(places, text, first)
        self._shared |= {key: (text, place) for key, place in places.items()}


def _index(places: dict[tuple[int, ...], int], text: Sequence[int], first: int) -> None:
    """Note for each n-gram of `text` that something at or after `first` follows where that begins; the latest wins."""
    for order in ORDERS:
        for end in range(max(first, order), len(text)):
            places[tuple(text[end - order : end])] = end
