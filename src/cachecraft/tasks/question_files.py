"""Reads questions about documents: SQuAD's and HotpotQA's JSON files, the same as rows, or rows from the hub.

Says in one sentence what in a file is wrong: which file, which entry or line, which field. How questions are cut
into splits is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from cachecraft.tasks.data_files import DataFile, hub_rows, read_data
from cachecraft.tasks.entries import Entry, Text, checked, wrong
from cachecraft.tasks.questions import Asked, Block

Form = Literal["squad", "hotpot"]
FORMS: Mapping[Form, str] = {"squad": "SQuAD", "hotpot": "HotpotQA"}
HUB_SETS: Mapping[Form, tuple[str, str | None]] = {
    "squad": ("rajpurkar/squad_v2", None),
    "hotpot": ("hotpotqa/hotpot_qa", "distractor"),
}


class _Answer(Entry):
    text: Text


class _SquadQuestion(Entry):
    question: Text
    answers: list[_Answer]
    is_impossible: bool = False


class _Paragraph(Entry):
    context: Text
    qas: list[_SquadQuestion]


class _Article(Entry):
    paragraphs: list[_Paragraph]


class _SquadFile(Entry):
    data: list[_Article]


class _AnswerTexts(Entry):
    text: list[Text]


class _SquadRow(Entry):
    title: str = ""
    context: Text
    question: Text
    answers: _AnswerTexts


def _pairs(of: str) -> BeforeValidator:
    """Take the hub's two columns for the file's list of pairs."""

    def change(value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("title"), list) and isinstance(value.get(of), list):
            return [list(pair) for pair in zip(value["title"], value[of], strict=False)]
        return value

    return BeforeValidator(change)


class _HotpotRow(Entry):
    question: Text
    answer: Text
    supporting_facts: Annotated[list[tuple[str, int]], _pairs("sent_id")]
    context: Annotated[list[tuple[str, list[str]]], _pairs("sentences")]


def read_question_files(names: Sequence[str]) -> dict[Form, tuple[Block, ...]]:
    """Read the questions of what the user named; see `read_data`, which says what a name may be.

    Returns:
        The blocks of each form, in the order of the names; a form that no file has is absent.

    Raises:
        TaskError: A file cannot be read or has another form.
    """
    return question_blocks(read_data(names))


def question_blocks(files: Iterable[DataFile]) -> dict[Form, tuple[Block, ...]]:
    """The blocks of each of the two forms among what was read; files of other forms are passed over.

    Raises:
        TaskError: An entry is not as its form has it.
    """
    found: dict[Form, list[Block]] = {}
    for file in files:
        if file.form == "squad" or file.form == "hotpot":
            found.setdefault(file.form, []).extend(_blocks(file))
    return {form: tuple(blocks) for form, blocks in found.items()}


def read_hub(form: Form, repository: str = "", config: str | None = None) -> tuple[Block, ...]:
    """Read the validation split of a data set of the Hugging Face hub, or of a folder in its form.

    Args:
        form: What its rows are.
        repository: Its id or folder; "" for the one in `HUB_SETS`.
        config: Its configuration.

    Raises:
        TaskError: The package `datasets` is not installed, or the data set cannot be loaded or has another form.
    """
    if not repository:
        repository, config = HUB_SETS[form]
    return _blocks(DataFile(repository, form, hub_rows(repository, config, "validation")))


def _blocks(file: DataFile) -> tuple[Block, ...]:
    """The blocks of a file or data set whose form is known."""
    if isinstance(file.content, dict):
        return tuple(_article(article) for article in checked(_SquadFile, file.content, file.name).data)
    if file.form == "hotpot":
        return tuple(_hotpot(row, file.name, place) for place, row in file.entries())
    return tuple(_row_blocks(checked(_SquadRow, row, file.name, place) for place, row in file.entries()))


def _article(article: _Article) -> Block:
    return Block(
        documents=tuple(paragraph.context for paragraph in article.paragraphs),
        asked=tuple(
            Asked(each.question, tuple(dict.fromkeys(answer.text for answer in each.answers)), (number,))
            for number, paragraph in enumerate(article.paragraphs)
            for each in paragraph.qas
            if each.answers and not each.is_impossible
        ),
        together=True,
    )


def _row_blocks(rows: Iterable[_SquadRow]) -> Iterator[Block]:
    """Put the rows of an article together again."""
    articles: dict[str, list[_SquadRow]] = {}
    for row in rows:
        articles.setdefault(row.title or row.context, []).append(row)
    for of_article in articles.values():
        places = {text: number for number, text in enumerate(dict.fromkeys(row.context for row in of_article))}
        asked = (
            Asked(row.question, tuple(dict.fromkeys(row.answers.text)), (places[row.context],))
            for row in of_article
            if row.answers.text
        )
        yield Block(tuple(places), tuple(asked), together=True)


def _hotpot(content: Any, name: str, place: str) -> Block:
    row = checked(_HotpotRow, content, name, place)
    titles = [title for title, _ in row.context]
    wanted = dict.fromkeys(title for title, _ in row.supporting_facts)
    if not wanted or not wanted.keys() <= set(titles):
        odd = next((title for title in wanted if title not in titles), None)
        what = f"names {odd!r}, which is not among the titles of its context" if odd else "is empty"
        raise wrong(name, place, ".supporting_facts", what)
    return Block(
        documents=tuple(f"{title}\n{''.join(sentences)}" for title, sentences in row.context),
        asked=(Asked(row.question, (row.answer,), tuple(titles.index(title) for title in wanted)),),
        together=False,
    )
