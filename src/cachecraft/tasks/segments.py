"""Where in a benchmark's context the parts are that a policy should not lose: instruction, documents, answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cachecraft.tasks.task import Segment

FIRST, MIDDLE, LAST = "first_document", "middle_documents", "last_document"
_DOCUMENT = re.compile(r"^(?:Passage|Paragraph|Document) ?\d+:|^(?:文章|段落)\d+", re.MULTILINE)
_SHORTEST = 3  # characters of an answer that is looked for: shorter ones stand anywhere


def segments_of(context: str, opening: int, answers: Sequence[str]) -> tuple[Segment, ...]:
    """The segments of a context.

    Args:
        context: The text.
        opening: How many characters at its start are the instruction.
        answers: References; the first one that stands in the rest as whole words is the ``answer``, at its first
            place there.
    """
    found = [Segment("instruction", 0, len(context[:opening].rstrip()))] if context[:opening].strip() else []
    return (*found, *_documents(context, opening), *_answer(context, opening, answers))


def _documents(context: str, opening: int) -> Iterator[Segment]:
    starts = [match.start() for match in _DOCUMENT.finditer(context, opening)]
    if len(starts) < 2:
        return
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(context)], strict=True)):
        name = FIRST if number == 0 else LAST if number == len(starts) - 1 else MIDDLE
        yield Segment(name, start, end)


def _answer(context: str, opening: int, answers: Sequence[str]) -> Iterator[Segment]:
    for answer in answers:
        bare = answer.strip()
        if len(bare) < _SHORTEST:
            continue
        match = re.compile(rf"(?<![A-Za-z0-9]){re.escape(bare)}(?![A-Za-z0-9])").search(context, opening)
        if match is not None:
            yield Segment("answer", match.start(), match.end())
            return
