"""Metrics on generated text, each from 0 to 1. RULER's string matches; other families add theirs here."""

from __future__ import annotations

from collections.abc import Sequence

from cachecraft.errors import TaskError


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the answer, upper and lower case alike (RULER, arXiv 2404.06654).

    Args:
        answer: The generated text.
        references: What should be in it; at least one.

    Raises:
        TaskError: There are no references, so that there is nothing to match.
    """
    found = _found(answer, references)
    return sum(found) / len(found)


def string_match_part(answer: str, references: Sequence[str]) -> float:
    """1 if any reference occurs in the answer, upper and lower case alike, else 0 (RULER, arXiv 2404.06654).

    Args:
        answer: The generated text.
        references: Aliases of the right answer; at least one.

    Raises:
        TaskError: There are no references, so that there is nothing to match.
    """
    return float(any(_found(answer, references)))


def _found(answer: str, references: Sequence[str]) -> list[bool]:
    if not references or not all(references):
        raise TaskError(
            f"An answer cannot be scored against the references {list(references)!r}; "
            "give at least one, none of them empty."
        )
    lowered = answer.lower()
    return [reference.lower() in lowered for reference in references]
