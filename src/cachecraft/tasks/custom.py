"""Tasks of the user's own: one file of JSON lines, an item a line, named with ``--tasks FILE.jsonl``.

A line is an object with these fields and no others:

    context         what is compressed; not empty
    question        what is asked about it; "" where context and question come in one piece
    answer_prefix   what the answer starts with; ""
    answers         list of references, at least one, none empty
    max_new_tokens  limit of the generated answer; 64
    metric          one of `cachecraft.tasks.scoring.named.METRICS`
    classes         what a classification chooses from; []
    stop            texts at which the answer ends; []
    chat            whether the model's chat template is used; true
    document        items with the same name here belong in one split and to one cluster; ""
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cachecraft.errors import TaskError, UnknownNameError
from cachecraft.tasks.benchmark import BenchmarkTask, Sample
from cachecraft.tasks.data_files import json_lines, read_text
from cachecraft.tasks.entries import Text, checked, place, wrong
from cachecraft.tasks.scoring.longbench import chinese_missing
from cachecraft.tasks.scoring.named import metric_named
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import BOTH_REGIMES, Item

ENDING = ".jsonl"
_ANY_ANSWER = "The answer is \\boxed{0}. The correct answer is (A)."


class CustomItem(BaseModel):
    """One line of a file of tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    context: Text
    question: str = ""
    answer_prefix: str = ""
    answers: list[Text] = Field(min_length=1)
    max_new_tokens: int = Field(default=64, ge=1)
    metric: str
    classes: list[Text] = []
    stop: list[Text] = []
    chat: bool = True
    document: str = ""


def custom_task(name: str, sources: Sources) -> BenchmarkTask:
    """The task that a file makes; it is read and checked now.

    Args:
        name: Path of the file; the task is called by its last part.
        sources: Whether items that are too long are left out.

    Raises:
        TaskError: The file cannot be read, a line is not as it should be or repeats another; which line, which field.
    """
    path = Path(name)
    samples = _samples(path)
    chinese = any(sample.metric.endswith("_zh") for sample in samples)
    whole = next((sample.place for sample in samples if not sample.question and not sample.answer_prefix), "")
    return BenchmarkTask(
        name=path.name,
        read=lambda: samples,
        metric=_score,
        max_new_tokens=64,
        needs=lambda: chinese_missing() if chinese else "",
        skip_long=sources.skip_long,
        regimes=("aware",) if whole else BOTH_REGIMES,
        whole=whole,
    )


def _score(answer: str, item: Item) -> float:
    return metric_named(item.metric).score(answer, item)


def _require_scorable(row: CustomItem, where: str) -> None:
    """Refuse references that the metric cannot read, now and not when the first answer is scored."""
    texts = (row.context, row.question, row.answer_prefix)
    for reference in row.answers:
        item = Item("", 0, "all", 0, 0, *texts, (reference,), row.max_new_tokens, classes=tuple(row.classes))
        try:
            metric_named(row.metric).score(_ANY_ANSWER, item)
        except (TaskError, ValueError) as error:
            raise TaskError(
                f"{where}: metric {row.metric} cannot read the answer {reference!r} ({error}); give another or "
                "another metric."
            ) from error


def _samples(path: Path) -> list[Sample]:
    seen: dict[tuple[Any, ...], int] = {}
    samples = []
    for number, entry in enumerate(json_lines(read_text(path), str(path))):
        where = place(number, lines=True)
        row = checked(CustomItem, entry, str(path), where)
        try:
            metric = metric_named(row.metric)
        except UnknownNameError as error:
            raise TaskError(f"{path}, line {number + 1}: {error}") from error
        if row.metric == "classification" and not set(row.answers) <= set(row.classes):
            raise wrong(str(path), where, ".classes", "does not hold the answers, which metric classification needs")
        _require_scorable(row, f"{path}, line {number + 1}")
        if (first := seen.setdefault((row.context, row.question), number)) != number:
            raise TaskError(
                f"{path}: line {number + 1} asks what line {first + 1} asks of the same context; leave one of them out."
            )
        samples.append(
            Sample(
                place=f"line {number + 1} of {path.name}",
                context=row.context,
                question=row.question,
                answers=tuple(row.answers),
                answer_prefix=row.answer_prefix,
                classes=tuple(row.classes),
                document=row.document,
                metric=row.metric,
                max_new_tokens=row.max_new_tokens,
                chat=row.chat,
                stop=tuple(row.stop),
                alternatives=metric.aliases,
            )
        )
    return samples
