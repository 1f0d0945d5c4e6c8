"""LongBench v2 as pairs of files: the text as ``NAME_context.txt``, question, choices and answer as ``NAME.md``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cachecraft.errors import TaskError

_CONTEXT = "_context.txt"
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_CHOICE = re.compile(r"^- ([A-D]): (.*)$", re.MULTILINE)


def read_pairs(folder: Path) -> list[dict[str, Any]]:
    """The pairs in a folder and the folders in it, as entries of LongBench v2's JSON form; [] if there are none.

    Raises:
        TaskError: A text has no question file, or that has no question, choice or answer where it should.
    """
    return [_pair(context) for context in sorted(folder.rglob(f"*{_CONTEXT}"))]


def _pair(context: Path) -> dict[str, Any]:
    asked = context.with_name(context.name.removesuffix(_CONTEXT) + ".md")
    try:
        texts = [file.read_text(encoding="utf-8-sig") for file in (context, asked)]
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{context} and {asked.name} cannot be read together ({error}); a pair needs both.") from error
    parts = _HEADING.split(texts[1])
    sections = {name.strip().lower(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    choices = {letter: text.strip() for letter, text in _CHOICE.findall(sections.get("choices", ""))}
    answer = sections.get("answer", "")
    for what, there in (
        ("# Question", bool(sections.get("question"))),
        ("# Choices with '- A: ' to '- D: '", sorted(choices) == list("ABCD")),
        ("# Answer with A, B, C or D", answer in list("ABCD")),
    ):
        if not there:
            raise TaskError(f"{asked} is not LongBench v2's form: it lacks {what}; mend or leave it out.")
    found = re.search(r"ID: (\S+)", sections.get("metadata", ""))
    domain = re.search(r"Domain: (.+)", sections.get("metadata", ""))
    return {
        "_id": found.group(1) if found else asked.stem,
        "domain": domain.group(1).strip() if domain else "",
        "context": texts[0],
        "question": sections["question"],
        **{f"choice_{letter}": text for letter, text in choices.items()},
        "answer": answer,
    }
