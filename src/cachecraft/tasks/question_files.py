"""Reads questions about documents: SQuAD's and HotpotQA's JSON files, the same as rows, or rows from the hub.

Says in one sentence what in a file is wrong: which file, which entry or line, which field. How questions are cut
into splits is not its business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from cachecraft.errors import TaskError
from cachecraft.tasks.questions import Asked, Block

Form = Literal["squad", "hotpot"]
FORMS: Mapping[Form, str] = {"squad": "SQuAD", "hotpot": "HotpotQA"}
HUB = "hub"  # named instead of a file
HUB_SETS: Mapping[Form, tuple[str, str | None]] = {
    "squad": ("rajpurkar/squad_v2", None),
    "hotpot": ("hotpotqa/hotpot_qa", "distractor"),
}

Text = Annotated[str, StringConstraints(min_length=1)]
_Model = TypeVar("_Model", bound=BaseModel)


class _Entry(BaseModel):
    """Part of a published file; fields that no task needs are passed over, unlike in files of our own."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Answer(_Entry):
    text: Text


class _SquadQuestion(_Entry):
    question: Text
    answers: list[_Answer]
    is_impossible: bool = False


class _Paragraph(_Entry):
    context: Text
    qas: list[_SquadQuestion]


class _Article(_Entry):
    paragraphs: list[_Paragraph]


class _SquadFile(_Entry):
    data: list[_Article]


class _AnswerTexts(_Entry):
    text: list[Text]


class _SquadRow(_Entry):
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


class _HotpotRow(_Entry):
    question: Text
    answer: Text
    supporting_facts: Annotated[list[tuple[str, int]], _pairs("sent_id")]
    context: Annotated[list[tuple[str, list[str]]], _pairs("sentences")]


def read_question_files(names: Sequence[str]) -> dict[Form, tuple[Block, ...]]:
    """Read what the user named: files, and of folders the files in them that have a known form.

    Args:
        names: Paths; `HUB` among them is passed over.

    Returns:
        The blocks of each form, in the order of the names; a form that no file has is absent.

    Raises:
        TaskError: A file cannot be read or has another form, or a folder holds none that has a known one.
    """
    found: dict[Form, list[Block]] = {}
    for name in names:
        if name == HUB:
            continue
        path = Path(name)
        known = 0
        for file in _inside(path) if path.is_dir() else [path]:
            content = _parsed(file)
            form = _form_of(content)
            if form is not None:
                known += 1
                found.setdefault(form, []).extend(_blocks(file.name, form, content, lines=file.suffix == ".jsonl"))
            elif not path.is_dir():
                raise TaskError(f"{file} has neither SQuAD's nor HotpotQA's form: {_seen(content)}; give another file.")
        if not known:
            raise TaskError(f"The folder {path} holds no .json or .jsonl file in SQuAD's or HotpotQA's form.")
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
    try:
        import datasets
    except ImportError:
        raise TaskError(
            "--data hub needs the package `datasets`: pip install 'cachecraft-kv[datasets]', or give files instead."
        ) from None
    try:
        rows = list(datasets.load_dataset(repository, config, split="validation"))
    except (OSError, ValueError, RuntimeError) as error:  # not found and no connection are kinds of OSError
        reason = " ".join(str(error).split())
        raise TaskError(
            f"The data set {repository} could not be loaded ({reason}); download its file and name it with --data."
        ) from error
    return _blocks(repository, form, rows)


def _inside(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.suffix in (".json", ".jsonl") and each.is_file())


def _parsed(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskError(f"The data file {file} cannot be read ({error.strerror}); check its path.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"The data file {file} is not UTF-8 text (byte {error.start}); convert it first.") from error
    lines = file.suffix == ".jsonl"
    rows: list[Any] = []
    for line, part in enumerate(text.rstrip().split("\n") if lines else [text], start=1):
        try:
            rows.append(json.loads(part))
        except json.JSONDecodeError as error:
            raise TaskError(
                f"The data file {file} is not JSON: line {line + error.lineno - 1}, column {error.colno}: {error.msg}."
            ) from error
    return rows if lines else rows[0]


def _form_of(content: Any) -> Form | None:
    """Known by its first entry alone, so that an entry that is wrong further on is named and not passed over."""
    if isinstance(content, dict):
        return "squad" if "data" in content else None
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict) or "question" not in first or "context" not in first:
        return None
    return "squad" if isinstance(first["context"], str) else "hotpot"


def _seen(content: Any) -> str:
    if isinstance(content, list):
        return f"its first entry {_fields(content[0])}" if content else "it is empty"
    return f"it {_fields(content)}"


def _fields(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"is {type(entry).__name__}, not an object with fields"
    return f"has the fields {', '.join(map(repr, list(entry)[:8])) or 'none'}"


def _blocks(name: str, form: Form, content: Any, *, lines: bool = False) -> tuple[Block, ...]:
    """The blocks of a file or data set whose form is known."""
    if isinstance(content, dict):
        return tuple(_article(article) for article in _checked(_SquadFile, content, name).data)
    rows = [(_place(number, lines), row) for number, row in enumerate(content)]
    if form == "hotpot":
        return tuple(_hotpot(row, name, place) for place, row in rows)
    return tuple(_row_blocks(_checked(_SquadRow, row, name, place) for place, row in rows))


def _place(number: int, lines: bool) -> str:
    return f"line {number + 1}, " if lines else f"[{number}]"


def _checked(model: type[_Model], content: Any, name: str, place: str = "") -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        where = f"{place}{steps if place.startswith('[') else steps.removeprefix('.')}" or "the whole"
        what = "is missing" if first["type"] == "missing" else first["msg"].removeprefix("Input ")
        raise TaskError(
            f"The data in {name} has another form than expected: {where} {what}; mend or leave it out."
        ) from error


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
    row = _checked(_HotpotRow, content, name, place)
    titles = [title for title, _ in row.context]
    wanted = dict.fromkeys(title for title, _ in row.supporting_facts)
    if not wanted or not wanted.keys() <= set(titles):
        odd = next((title for title in wanted if title not in titles), None)
        what = f"names {odd!r}, which is not among the titles of its context" if odd else "is empty"
        where = f"{place}{'.' if place.startswith('[') else ''}supporting_facts"
        raise TaskError(f"The data in {name} has another form than expected: {where} {what}; mend or leave it out.")
    return Block(
        documents=tuple(f"{title}\n{''.join(sentences)}" for title, sentences in row.context),
        asked=(Asked(row.question, (row.answer,), tuple(titles.index(title) for title in wanted)),),
        together=False,
    )
