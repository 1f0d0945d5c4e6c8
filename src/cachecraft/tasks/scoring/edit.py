"""Edit similarity of two texts, as RapidFuzz's and fuzzywuzzy's ``ratio`` define it. Nothing else is compared here."""

from __future__ import annotations


def similarity(a: str, b: str) -> float:
    """Share of the characters of both texts that a longest common subsequence covers.

    ``2 * LCS / (len(a) + len(b))``: 1 less the number of insertions and deletions that turn one text into the
    other, over the characters of both.

    Args:
        a: One text.
        b: The other.

    Returns:
        From 0 (no character in common) to 1; 1 for two empty texts.
    """
    if not a and not b:
        return 1.0
    return 2 * common_length(a, b) / (len(a) + len(b))


def percent(a: str, b: str) -> int:
    """`similarity` in whole per cent, halves to the even one, as the benchmarks round it."""
    return round(100 * similarity(a, b))


def common_length(a: str, b: str) -> int:
    """Length of a longest common subsequence (Hyyrö's bit-parallel recurrence, one big integer for a whole row)."""
    if not a or not b:
        return 0
    places: dict[str, int] = {}
    for number, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << number
    every = (1 << len(a)) - 1
    row = every  # a 0 for each place of `a` at which the subsequence grows
    for character in b:
        matches = row & places.get(character, 0)
        row = ((row + matches) | (row - matches)) & every
    return len(a) - row.bit_count()
