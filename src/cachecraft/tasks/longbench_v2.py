"""LongBench v2 (Bai et al., 2024, arXiv 2412.15204): multiple-choice questions about long documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from cachecraft.tasks.benchmark import BenchmarkTask, Sample
from cachecraft.tasks.entries import Entry, Text, checked
from cachecraft.tasks.scoring.final_answers import choice
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

_OPENING = "Please read the following text and answer the question below.\n\n<text>\n"
_QUESTION = (
    "\n</text>\n\nWhat is the correct answer to this question: {question}\nChoices:\n"
    "(A) {a}\n(B) {b}\n(C) {c}\n(D) {d}\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".'
)


class _Row(Entry):
    context: Text
    question: Text
    choice_A: Text
    choice_B: Text
    choice_C: Text
    choice_D: Text
    answer: Literal["A", "B", "C", "D"]


def longbench_v2_tasks(sources: Sources) -> tuple[Task, ...]:
    """The one task."""

    def needs() -> str:
        if sources.benchmark("longbench_v2"):
            return ""
        return "needs LongBench v2's data.json, or a folder of its _context.txt and .md pairs: give it with --data"

    return (
        BenchmarkTask(
            name="longbench_v2",
            read=lambda: list(_samples(sources)),
            metric=lambda answer, item: choice(answer, item.references[0]),
            max_new_tokens=128,
            needs=needs,
            too_long="middle",
            skip_long=sources.skip_long,
        ),
    )


def _samples(sources: Sources) -> Iterator[Sample]:
    for file in sources.benchmark("longbench_v2"):
        for place, entry in file.entries():
            row = checked(_Row, entry, file.name, place)
            asked = _QUESTION.format(
                question=row.question.strip(),
                a=row.choice_A.strip(),
                b=row.choice_B.strip(),
                c=row.choice_C.strip(),
                d=row.choice_D.strip(),
            )
            yield Sample(
                place=f"{place.rstrip(', ')} of {file.name}",
                context=_OPENING + row.context.strip(),
                question=asked,
                answers=(row.answer,),
                opening=len(_OPENING),
            )
