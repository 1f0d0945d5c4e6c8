"""Reads the data that a user names: JSON and JSON lines, plain, gzipped or zipped, folders of them, hub data sets.

What form a file's entries have is told by `cachecraft.tasks.data_forms`.
"""

from __future__ import annotations

import gzip
import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecraft.errors import TaskError
from cachecraft.tasks.choice_files import read_pairs
from cachecraft.tasks.data_forms import FORMS, Form, described, form_of
from cachecraft.tasks.entries import place

HUB = "hub"  # named instead of a file
ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".zip")


@dataclass(frozen=True)
class DataFile:
    """What a file, or a file within a zip file, or a data set holds.

    Attributes:
        name: As shown in messages.
        form: Of its entries.
        content: A list of entries, or the one object that the file is.
        lines: Whether entries are lines, so that messages count from line 1.
    """

    name: str
    form: Form
    content: Any
    lines: bool = False

    @property
    def stem(self) -> str:
        """The name without folders and endings: LongBench's files carry their task in it."""
        return Path(self.name).name.split(".")[0]

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Each entry with its place as messages give it: ``line 3, ``, ``[2]`` or ``["2"]``."""
        if isinstance(self.content, dict):
            yield from ((f'["{key}"]', entry) for key, entry in self.content.items())
        else:
            yield from ((place(number, self.lines), entry) for number, entry in enumerate(self.content))


def read_data(names: Sequence[str]) -> tuple[DataFile, ...]:
    """Read what the user named: files, the files in folders that have a known form, and hub data sets.

    Args:
        names: Paths, and ``hub:REPOSITORY[:CONFIGURATION[:SPLIT]]`` (a folder in a hub data set's form will do as a
            repository); a plain `HUB` is passed over.

    Raises:
        TaskError: A file cannot be read, is empty or has another form, or a folder holds none that has a known one.
    """
    found: dict[str, DataFile] = {}
    for name in names:
        if name == HUB:
            continue
        if name.startswith(f"{HUB}:"):
            found[name] = _hub(name)
            continue
        path = Path(name)
        inside = [each for file in _files(path) for each in _read(file, folder=path.is_dir())]
        if path.is_dir():
            inside += [DataFile(str(path), "longbench_v2", pairs)] if (pairs := read_pairs(path)) else []
            if not inside:
                raise TaskError(f"The folder {path} holds no data in a known form ({', '.join(FORMS.values())}).")
        found.update((each.name, each) for each in inside)
    return tuple(found.values())


def hub_rows(repository: str, config: str | None, split: str) -> list[Any]:
    """The rows of a data set of the Hugging Face hub, or of a folder in its form.

    Raises:
        TaskError: The package `datasets` is not installed, or the data set cannot be loaded.
    """
    try:
        import datasets
    except ImportError:
        raise TaskError(
            "--data hub needs the package `datasets`: pip install 'cachecraft-kv[datasets]', or give files instead."
        ) from None
    try:
        return list(datasets.load_dataset(repository, config, split=split))
    except Exception as error:  # of its own kinds, and of whatever reads the files that it is made of
        reason = " ".join(str(error.__cause__ or error).split())
        raise TaskError(
            f"The data set {repository} could not be loaded ({reason}); download its file and name it with --data."
        ) from error


def json_lines(text: str, name: str) -> list[Any]:
    """The values of a text of JSON lines.

    Raises:
        TaskError: A line is no JSON.
    """
    rows = []
    for line, part in enumerate(text.rstrip().split("\n"), start=1):
        try:
            rows.append(json.loads(part))
        except json.JSONDecodeError as error:
            raise _no_json(name, line, error) from error
    return rows


def read_text(path: Path) -> str:
    """A file's text, unpacked if its name ends in ``.gz``.

    Raises:
        TaskError: It cannot be read, is not UTF-8 or is empty.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TaskError(f"The data file {path} cannot be read ({reason}); check its path.") from error
    return _decoded(raw, str(path))


def _decoded(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"The data file {name} is not UTF-8 text (byte {error.start}); convert it first.") from error
    if not text.strip():
        raise TaskError(f"The data file {name} is empty; give another file.")
    return text


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.rglob("*") if each.name.endswith(ENDINGS) and each.is_file())


def _read(path: Path, *, folder: bool) -> Iterator[DataFile]:
    for name, text in _texts(path):
        content, lines = _parsed(name, text)
        form = form_of(content)
        if form is not None:
            yield DataFile(name, form, content, lines)
        elif not folder and path.suffix != ".zip":
            raise TaskError(
                f"{name} has none of the known forms ({', '.join(FORMS.values())}): {described(content)}; "
                "give another file."
            )


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix != ".zip":
        yield str(path), read_text(path)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith((".json", ".jsonl")):
                    yield f"{path}/{member}", _decoded(archive.read(member), f"{path}/{member}")
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise TaskError(f"The data file {path} cannot be read ({error}); check it.") from error


def _parsed(name: str, text: str) -> tuple[Any, bool]:
    """The content, and whether it is lines: some published .json files are."""
    if name.removesuffix(".gz").endswith(".jsonl"):
        return json_lines(text, name), True
    try:
        return json.loads(text), False
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text[: error.pos].count("\n") == 1:
            return json_lines(text, name), True
        raise _no_json(name, 1, error) from error


def _no_json(name: str, line: int, error: json.JSONDecodeError) -> TaskError:
    at = f"line {line + error.lineno - 1}, column {error.colno}"
    return TaskError(f"The data file {name} is not JSON: {at}: {error.msg}.")


def _hub(name: str) -> DataFile:
    repository, config, split = [*name.split(":")[1:], "", ""][:3]
    rows = hub_rows(repository, config or None, split or "test")
    form = form_of(rows)
    if form is None:
        raise TaskError(f"{name} has none of the known forms ({', '.join(FORMS.values())}): {described(rows)}.")
    return DataFile(name, form, rows)
