"""Keys, values and words of RULER's tasks, drawn so that two splits never share a key or an answer.

A key belongs to the split that its hash says: a noun, a uuid, a variable name or a coded word is drawn until its
SHA-256 modulo 3 is the split's number. That holds for any number of items, without a list of what was used.
"""

from __future__ import annotations

import hashlib
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from cachecraft.tasks.task import SPLITS


@dataclass(frozen=True)
class WordPool:
    """Words for adjective-noun keys and for numbered lists.

    Attributes:
        adjectives: All adjectives, sorted.
        nouns: For each split, in the order of `SPLITS`, its nouns, sorted.
        listed: For each split its nouns, adjectives and verbs, sorted; no two differ only in capitals.
    """

    adjectives: tuple[str, ...]
    nouns: tuple[tuple[str, ...], ...]
    listed: tuple[tuple[str, ...], ...]


def read_words() -> WordPool:
    """Read the word lists of the `wonderwords` package and cut the nouns by split."""
    # Imported here because it reads its files when imported.
    from wonderwords import Defaults, RandomWord

    lists = RandomWord(
        enhanced_prefixes=False,
        noun=Defaults.NOUNS,
        adjective=Defaults.ADJECTIVES,
        verb=Defaults.VERBS,
        profanity=Defaults.PROFANITIES,
    )
    # Only ASCII words: the package reads its files in the machine's own encoding, so that any other letter
    # could differ between machines. No profanities: people see the keys, and some models refuse them.
    barred = set(lists.filter(include_categories=["profanity"]))
    adjectives = lists.filter(include_categories=["adjective"], regex=r"[A-Za-z'-]+")
    # No hyphen in a noun: the noun of a key is what follows its last hyphen, so a key has only one split.
    nouns = [noun for noun in lists.filter(include_categories=["noun"], regex=r"[A-Za-z']+") if noun not in barred]
    everything = lists.filter(include_categories=["noun", "adjective", "verb"], regex=r"[A-Za-z'-]+")
    listed = {word.lower(): word for word in sorted(everything) if word not in barred}
    return WordPool(
        tuple(word for word in adjectives if word not in barred),
        _by_split(nouns),
        _by_split(sorted(listed.values())),
    )


def _by_split(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(word for word in words if split_of(word) == number) for number in range(len(SPLITS)))


def split_of(text: str) -> int:
    """Number of the split that a noun, uuid or name belongs to."""
    return int(hashlib.sha256(text.encode("utf-8")).hexdigest(), 16) % len(SPLITS)


def word_key(rng: Random, split: int, pool: WordPool) -> str:
    """Draw an adjective-noun key whose noun belongs to the split."""
    return f"{rng.choice(pool.adjectives)}-{rng.choice(pool.nouns[split])}"


def uuid_key(rng: Random, split: int) -> str:
    """Draw a uuid (version 4) that belongs to the split."""
    return _drawn_for(split, lambda: uuid_value(rng))


def name_key(rng: Random, split: int, letters: int) -> str:
    """Draw a variable name of capital letters that belongs to the split."""
    return _drawn_for(split, lambda: "".join(rng.choices(string.ascii_uppercase, k=letters)))


def coded_word(rng: Random, split: int, letters: int) -> str:
    """Draw a word of small letters that belongs to the split."""
    return _drawn_for(split, lambda: "".join(rng.choices(string.ascii_lowercase, k=letters)))


def uuid_value(rng: Random) -> str:
    """Draw a uuid (version 4)."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def number_value(rng: Random, digits: int) -> str:
    """Draw a number of so many digits, the first of which is not 0."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """Draw until there are `count` different strings."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def _drawn_for(split: int, draw: Callable[[], str]) -> str:
    while split_of(text := draw()) != split:
        pass
    return text
