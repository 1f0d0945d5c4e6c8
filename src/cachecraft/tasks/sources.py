"""The material that tasks are made of: what the user named, read once, when first needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cachecraft.tasks.haystack import Essay, read_essay
from cachecraft.tasks.words import WordPool, read_words


@dataclass(frozen=True)
class Sources:
    """Files that a user may name for tasks; every field has a default that needs no file and no network.

    Attributes:
        essays: UTF-8 text files for essay haystacks; none for the prose that comes with Python.
    """

    essays: tuple[Path, ...] = ()

    @cached_property
    def essay(self) -> Essay:
        """The essay text, cut by split.

        Raises:
            TaskError: A file cannot be read, or there is too little text.
        """
        return read_essay(self.essays)

    @cached_property
    def words(self) -> WordPool:
        """Words for keys, cut by split."""
        return read_words()
