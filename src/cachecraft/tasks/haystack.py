"""Haystacks: the noise line, essays cut into a region for each split, and the weaving of needles into either.

Essay text is read when it is first needed: the files a user names, else the English prose that every Python
carries (`pydoc_data.topics`, the language reference). It differs between Python versions, so its hash is part
of an item's id.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path

from cachecraft.errors import TaskError
from cachecraft.tasks.task import SPLITS

NOISE_LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

_FEWEST_WORDS = 300
_BLANK_LINE = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"""^.*[\w)\]"'”’`][.!?]["')\]”’]*$""")
_NO_SENTENCE_END = re.compile(r"""^["'(\[]*(?:\d+|\w|e\.g|i\.e|etc|cf|vs|Mr|Mrs|Ms|Dr|St|No)\.$""", re.IGNORECASE)


@dataclass(frozen=True)
class Region:
    """The words of one split, read in a circle.

    Attributes:
        words: The words, at least a hundred.
        ends: How many words there are up to and including each sentence's last one, ascending.
    """

    words: tuple[str, ...]
    ends: tuple[int, ...]

    def starts(self) -> tuple[int, ...]:
        """Indices of the words at which a sentence starts."""
        return (0, *(end for end in self.ends if end < len(self.words)))

    def passage(self, start: int, count: int) -> tuple[list[str], list[int]]:
        """Read on from a word, from the beginning again where the region ends.

        Args:
            start: Index of the first word.
            count: Number of words, at least 1; more than the region has are allowed.

        Returns:
            The words, and the places between them where a sentence may be put in: 0 (before the first word)
            and after each whole sentence.
        """
        size = len(self.words)
        turns = (start + count) // size + 1
        words = list(chain.from_iterable(repeat(self.words, turns)))[start : start + count]
        ends = [turn * size + end - start for turn in range(turns) for end in self.ends]
        return words, [0, *ends[bisect_right(ends, 0) : bisect_right(ends, count)]]


@dataclass(frozen=True)
class Essay:
    """Prose in three regions that share no text, one for each split.

    Attributes:
        regions: In the order of `SPLITS`.
        sha256: Hash of the whole text.
    """

    regions: tuple[Region, ...]
    sha256: str


def read_essay(files: Sequence[Path] = ()) -> Essay:
    """Read the essay text and cut it at sentence ends into three regions.

    Args:
        files: UTF-8 text files, read one after the other; none for the prose that comes with Python.

    Raises:
        TaskError: A file cannot be read, or there is too little text.
    """
    words = _words_of(files) if files else _words_of_python()
    ends = _sentence_ends(words)
    if len(words) < _FEWEST_WORDS or len(ends) < 2 * len(SPLITS):
        names = ", ".join(str(file) for file in files) or "pydoc_data.topics"
        raise TaskError(
            f"The essay text ({names}) has {len(words)} words in {len(ends)} sentences, too little to cut "
            f"into {len(SPLITS)} splits; give at least {_FEWEST_WORDS} words of prose."
        )
    # The last words may not end a sentence: they belong to the last region all the same.
    third = len(words) / len(SPLITS)
    cuts = [min(ends, key=lambda end: abs(end - third * number)) for number in range(1, len(SPLITS))]
    bounds = [0, *cuts, len(words)]
    if any(low >= high for low, high in pairwise(bounds)):
        raise TaskError(
            "The essay text has a sentence longer than a third of it, so it cannot be cut; give other prose."
        )
    regions = tuple(
        Region(tuple(words[low:high]), tuple(end - low for end in ends if low < end <= high))
        for low, high in pairwise(bounds)
    )
    return Essay(regions, hashlib.sha256(" ".join(words).encode("utf-8")).hexdigest())


def weave(units: Sequence[str], inserts: Sequence[tuple[int, str]], glue: str) -> tuple[str, list[tuple[int, int]]]:
    """Put sentences between the units of a haystack.

    Args:
        units: Lines or words.
        inserts: Sentences, each with the number of units before it, ascending.
        glue: What joins two units, and a unit and a sentence.

    Returns:
        The text, and the span of each sentence in it, in characters.
    """
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    used = length = 0
    for place, sentence in inserts:
        if place > used:
            pieces.append(glue.join(units[used:place]))
            length += len(pieces[-1]) + len(glue)
            used = place
        spans.append((length, length + len(sentence)))
        pieces.append(sentence)
        length += len(sentence) + len(glue)
    if used < len(units):
        pieces.append(glue.join(units[used:]))
    return glue.join(pieces), spans


def _words_of(files: Sequence[Path]) -> list[str]:
    texts: list[str] = []
    for file in files:
        try:
            texts.append(file.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise TaskError(f"The essay file {file} cannot be read ({error.strerror}); check its path.") from error
        except UnicodeDecodeError as error:
            raise TaskError(
                f"The essay file {file} is not UTF-8 text (byte {error.start}); convert it first."
            ) from error
    return _paragraph_words(texts)


def _words_of_python() -> list[str]:
    # Imported here because it is half a megabyte that only essay tasks need.
    from pydoc_data.topics import topics

    words = _paragraph_words([topics[name] for name in sorted(topics)])
    # The rules of headings and tables are not prose.
    return [word for word in words if len(word) < 4 or any(letter.isalnum() for letter in word)]


def _paragraph_words(texts: Sequence[str]) -> list[str]:
    """The words of all different paragraphs: one that came twice could land in two splits."""
    paragraphs = (" ".join(part.split()) for text in texts for part in _BLANK_LINE.split(text))
    return [word for paragraph in dict.fromkeys(paragraphs) for word in paragraph.split()]


def _sentence_ends(words: Sequence[str]) -> list[int]:
    return [
        number
        for number, (word, following) in enumerate(zip(words, [*words[1:], "The"], strict=True), start=1)
        if _SENTENCE_END.match(word) and not _NO_SENTENCE_END.match(word) and not following[0].islower()
    ]
