"""The texts that a language model is given, as files with ``{{ placeholders }}``; `load_prompts` reads and checks them.

A folder of the user's may replace any of them. Every placeholder must be there, and no other: a text that silently
lacks the parent's program would cost money for nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cachecraft.errors import CacheCraftError

PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"editable", "features", "warnings"}),
    "propose": frozenset(
        {"parent_name", "parent_scores", "parent", "better", "different", "failures", "task"},
    ),
    "repair": frozenset({"problem"}),
}
_PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class PromptError(CacheCraftError):
    """A prompt file that cannot be used."""


@dataclass(frozen=True)
class Prompts:
    """The texts by name, checked."""

    texts: Mapping[str, str]

    def filled(self, name: str, **values: str) -> str:
        """A text with its placeholders filled; what was filled in is not looked at again."""
        text = _PLACE.sub(lambda found: values[found[1]], self.texts[name])
        return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"

    @property
    def digest(self) -> str:
        """Content hash of all texts, 16 hex digits."""
        whole = "\0".join(f"{name}\0{text}" for name, text in sorted(self.texts.items()))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def load_prompts(folder: Path | None = None) -> Prompts:
    """Read the texts.

    Args:
        folder: Where files of the user's are; what is not there is the built-in one. None for the built-in ones.

    Raises:
        PromptError: There is no such folder, or a file has other placeholders than it must.
    """
    texts = {name: _built_in(name) for name in PLACEHOLDERS}
    if folder is not None:
        if not folder.is_dir():
            raise PromptError(
                f"There is no folder {folder}; `cachecraft prompts --write {folder}` makes one to change."
            )
        for name in PLACEHOLDERS:
            path = folder / f"{name}.md"
            if path.is_file():
                texts[name] = _read(path)
        if not any((folder / f"{name}.md").is_file() for name in PLACEHOLDERS):
            raise PromptError(f"{folder} holds none of {', '.join(f'{name}.md' for name in PLACEHOLDERS)}.")
    for name, text in texts.items():
        _check(name, text, folder)
    return Prompts(texts)


def write_prompts(folder: Path) -> list[Path]:
    """Write the built-in texts into a folder, to be changed; files that are there already stay.

    Raises:
        PromptError: A file is there with other contents, or the folder cannot be written.
    """
    written = []
    for name in PLACEHOLDERS:
        path, text = folder / f"{name}.md", _built_in(name)
        try:
            if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
                raise PromptError(f"{path} exists and was not overwritten; name another folder or remove it.")
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise PromptError(f"{path} could not be written ({error.strerror or error}).") from error
        written.append(path)
    return written


def _built_in(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"The prompt file {path} cannot be read ({error}).") from error


def _check(name: str, text: str, folder: Path | None) -> None:
    found, wanted = set(_PLACE.findall(text)), PLACEHOLDERS[name]
    where = f"The prompt file {folder / f'{name}.md'}" if folder else f"The prompt {name}"
    if missing := sorted(wanted - found):
        raise PromptError(f"{where} lacks {', '.join(f'{{{{ {each} }}}}' for each in missing)}; put them in.")
    if unknown := sorted(found - wanted):
        raise PromptError(
            f"{where} has {', '.join(f'{{{{ {each} }}}}' for each in unknown)}, which nothing fills; there are "
            f"{', '.join(sorted(wanted))}."
        )
