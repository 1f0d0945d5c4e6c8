"""The material that tasks are made of: what the user named, read once, when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cachecraft.tasks.data_files import HUB, DataFile, read_data
from cachecraft.tasks.data_forms import Form as DataForm
from cachecraft.tasks.haystack import Essay, read_essay
from cachecraft.tasks.question_files import Form, question_blocks, read_hub
from cachecraft.tasks.questions import Block, QuestionSet, cut_by_split
from cachecraft.tasks.words import WordPool, read_words


@dataclass(frozen=True)
class Sources:
    """What a user may say about the tasks' material; every field has a default that needs no file and no network.

    Attributes:
        essays: UTF-8 text files for essay haystacks; none for the prose that comes with Python.
        data: Files of questions or benchmarks, folders that hold some, ``"hub"`` for RULER's questions from the Hugging
            Face hub, or ``"hub:REPOSITORY:CONFIGURATION:SPLIT"``.
        ruler_compat: Seed RULER's tasks as the original does, with the same order of parts in every item.
        skip_long: Leave out benchmark items that are longer than the length, instead of cutting them.
    """

    essays: tuple[Path, ...] = ()
    data: tuple[str, ...] = ()
    ruler_compat: bool = False
    skip_long: bool = False

    @cached_property
    def essay(self) -> Essay:
        """The essay text, cut by split.

        Raises:
            TaskError: A file cannot be read, or there is too little text.
        """
        return read_essay(self.essays)

    @cached_property
    def words(self) -> WordPool:
        """Words for keys and lists, cut by split."""
        return read_words()

    @cached_property
    def squad(self) -> QuestionSet | None:
        """Questions about articles' paragraphs, cut by split; None if the user named none.

        Raises:
            TaskError: The data cannot be read or has another form.
        """
        return self._questions("squad")

    @cached_property
    def hotpot(self) -> QuestionSet | None:
        """Questions about several paragraphs each, cut by split; None if the user named none.

        Raises:
            TaskError: The data cannot be read or has another form.
        """
        return self._questions("hotpot")

    def offers(self, form: Form) -> bool:
        """Whether there are questions of a form, as far as can be said without the network.

        Raises:
            TaskError: A file cannot be read or has another form.
        """
        return form in self._files or HUB in self.data

    def _questions(self, form: Form) -> QuestionSet | None:
        if not self.offers(form):
            return None
        return cut_by_split(self._files[form] if form in self._files else read_hub(form))

    def benchmark(self, form: DataForm) -> tuple[DataFile, ...]:
        """The files of a form among what the user named.

        Raises:
            TaskError: A file cannot be read or has another form.
        """
        return tuple(file for file in self._data if file.form == form)

    @cached_property
    def _files(self) -> Mapping[Form, tuple[Block, ...]]:
        return question_blocks(self._data)

    @cached_property
    def _data(self) -> tuple[DataFile, ...]:
        return read_data(self.data)
