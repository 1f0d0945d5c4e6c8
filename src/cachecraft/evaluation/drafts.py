"""Guesses the next tokens of greedy answers, so that several can be verified in one pass.

A policy that lost the answer makes a small model repeat itself up to the token limit; its next tokens are nearly
always a copy of something it, or another candidate, has written before. Guessing changes no answer: a guessed token
is kept only where the model, having seen the tokens before it, chooses the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 12  # tokens guessed at a time, at most
ORDERS = (3, 2)  # tokens that must match before a continuation is copied, tried in this order


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
        self._seen: list[dict[tuple[int, ...], int]] = [{} for _ in range(rows)]
        self._length = [4] * rows
        self._shared: dict[tuple[int, ...], tuple[list[int], int]] = {}
        self._prompt = len(prompt)
        common: dict[tuple[int, ...], int] = {}
        _index(common, self._texts[0] if rows else [], 0)
        for seen in self._seen:
            seen.update(common)
        hinted = [*prompt[-max(ORDERS) :], *hint]
        self._share(hinted, 0)

    def guess(self, row: int, most: int) -> list[int]:
        """Up to `most` tokens that may come next in a row; empty when nothing like it was seen."""
        text = self._texts[row]
        length = min(self._length[row], most)
        if length < 1:
            return []
        for order in ORDERS:
            key = tuple(text[-order:])
            at = self._seen[row].get(key)
            if at is not None:
                return text[at : at + length]
            shared = self._shared.get(key)
            if shared is not None:
                source, at = shared
                return source[at : at + length]
        return []

    def record(self, row: int, tokens: Sequence[int], guessed: int, right: int) -> None:
        """Add the tokens that a row was found to go on with, and how many of `guessed` tokens were `right`."""
        text = self._texts[row]
        before = len(text)
        text.extend(tokens)
        # The continuation of an n-gram must exist before it is looked up, so the newest one is indexed a turn later.
        _index(self._seen[row], text, max(0, before - max(ORDERS)))
        self._share(text, max(self._prompt - 1, before - max(ORDERS)))
        if guessed:
            doubled = min(LONGEST, 2 * self._length[row])
            self._length[row] = doubled if right == guessed else max(2, right + 1)

    def _share(self, text: list[int], first: int) -> None:
        for order in ORDERS:
            for end in range(max(first, order), len(text)):
                self._shared.setdefault(tuple(text[end - order : end]), (text, end))


def _index(seen: dict[tuple[int, ...], int], text: Sequence[int], first: int) -> None:
    """Note for each n-gram of `text` that ends at or after `first` where its latest continuation begins."""
    for order in ORDERS:
        for end in range(max(first, order), len(text)):
            seen[tuple(text[end - order : end])] = end
