"""LongBench (Bai et al., 2023, arXiv 2308.14508) and MiniLongBench (arXiv 2505.19959): 21 tasks from the user's files.

LongBench's items come with context and question apart. MiniLongBench's come as rendered prompts: what is context in
them is not said, so they are measured in the query-aware regime only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pydantic import Field

from cachecraft.errors import TaskError
from cachecraft.tasks.benchmark import BenchmarkTask, Sample
from cachecraft.tasks.data_files import DataFile
from cachecraft.tasks.data_forms import FORMS
from cachecraft.tasks.entries import Entry, Text, checked, wrong
from cachecraft.tasks.longbench_wording import LONGBENCH, Wording
from cachecraft.tasks.scoring import longbench as metrics
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Item, Task


class _Row(Entry):
    input: str
    context: Text
    answers: list[Text] = Field(min_length=1)
    dataset: str = ""
    all_classes: list[Text] | None = None


class _Gold(Entry):
    answers: list[Text] = Field(min_length=1)
    all_classes: list[Text]


class _Rendered(Entry):
    origin_prompt: Text
    gold: _Gold | list[Text]


def longbench_tasks(sources: Sources) -> tuple[Task, ...]:
    """The 21 tasks of LongBench."""
    return tuple(longbench_task(f"longbench:{name}", name, sources) for name in LONGBENCH)


def longbench_task(name: str, of: str, sources: Sources) -> BenchmarkTask:
    """One task of LongBench under a name: its code tasks have two."""
    wording = LONGBENCH[of]
    return BenchmarkTask(
        name=name,
        read=lambda: list(_samples(of, wording, sources)),
        metric=partial(score, wording),
        max_new_tokens=wording.new_tokens,
        needs=lambda: _needs(
            wording, any(task_of(file) == of for file in sources.benchmark("longbench")), f"{of}.jsonl"
        ),
        too_long="middle",
        skip_long=sources.skip_long,
    )


def mini_longbench_tasks(sources: Sources) -> tuple[Task, ...]:
    """The same tasks, as MiniLongBench chose and rendered them."""
    return tuple(_mini(name, wording, sources) for name, wording in LONGBENCH.items())


def _mini(of: str, wording: Wording, sources: Sources) -> BenchmarkTask:
    def held() -> list[DataFile]:
        return [file for file in sources.benchmark("mini_longbench") if task_of(file) == of]

    return BenchmarkTask(
        name=f"mini_longbench:{of}",
        read=lambda: [sample for file in held() for sample in _rendered(file, wording)],
        metric=partial(score, wording),
        max_new_tokens=wording.new_tokens,
        needs=lambda: _needs(wording, bool(held()), f"MiniLongBench_{of}.json"),
        too_long="middle",
        skip_long=sources.skip_long,
        regimes=("aware",),
    )


def score(wording: Wording, answer: str, item: Item) -> float:
    """The task's metric, the best over the references."""
    text = metrics.first_line(answer) if wording.first_line else answer
    if wording.metric == "classes":
        return max(metrics.classification(text, reference, item.classes) for reference in item.references)
    metric = {
        "f1": metrics.qa_f1,
        "f1_zh": metrics.qa_f1_chinese,
        "rouge": metrics.rouge,
        "rouge_zh": metrics.rouge_chinese,
        "retrieval": metrics.retrieval,
        "count": metrics.count,
        "code": metrics.code_similarity,
    }[wording.metric]
    return max(metric(text, reference) for reference in item.references)


def task_of(file: DataFile) -> str:
    """The task that a file holds: its first entry says so, or its name; "" if neither does."""
    content = file.content
    if isinstance(content, list):
        named = content[0].get("dataset")
        if isinstance(named, str) and named.removesuffix("_e") in LONGBENCH:
            return named.removesuffix("_e")
    stem = file.stem.removeprefix("MiniLongBench_").removeprefix("longbench_").removesuffix("_e")
    return stem if stem in LONGBENCH else ""


def _needs(wording: Wording, held: bool, file: str) -> str:
    if not held:
        publisher = FORMS["mini_longbench" if file.startswith("Mini") else "longbench"]
        return f"needs {publisher}'s {file}: give it, or its folder, with --data"
    return metrics.chinese_missing() if wording.chinese else ""


def _samples(of: str, wording: Wording, sources: Sources) -> Iterator[Sample]:
    for file in sources.benchmark("longbench"):
        if task_of(file) != of:
            continue
        for place, entry in file.entries():
            row = checked(_Row, entry, file.name, place)
            if row.dataset.removesuffix("_e") != (first := str(file.content[0].get("dataset", "")).removesuffix("_e")):
                what = f"is {row.dataset!r}, but the first entry's is {first!r}, and a file holds one task"
                raise wrong(file.name, place, ".dataset", what)
            if wording.metric == "classes" and not row.all_classes:
                raise wrong(file.name, place, ".all_classes", "is missing or empty")
            yield _sample(wording, f"{place.rstrip(', ')} of {file.name}", row)


def _sample(wording: Wording, place: str, row: _Row) -> Sample:
    return Sample(
        place=place,
        context=wording.before + row.context,
        question=wording.after.replace("{input}", row.input),
        answers=tuple(row.answers),
        opening=len(wording.before),
        classes=tuple(row.all_classes or ()) if wording.metric == "classes" else (),
        chat=wording.chat,
    )


def _rendered(file: DataFile, wording: Wording) -> Iterator[Sample]:
    for place, entry in file.entries():
        row = checked(_Rendered, entry, file.name, place)
        gold = row.gold if isinstance(row.gold, _Gold) else None
        answers = gold.answers if gold else row.gold
        if not isinstance(answers, list) or not answers:
            raise wrong(file.name, place, ".gold", "is empty")
        if wording.metric == "classes" and gold is None:
            raise TaskError(f"The data in {file.name} names no classes: {place}.gold.all_classes is missing.")
        yield Sample(
            place=f"{place} of {file.name}",
            context=row.origin_prompt,
            question="",
            answers=tuple(answers),
            opening=len(wording.before) if row.origin_prompt.startswith(wording.before) else 0,
            classes=tuple(gold.all_classes) if gold else (),
            chat=wording.chat,
        )
