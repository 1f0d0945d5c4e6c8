"""Code completion: LCC and RepoBench-P as LongBench has them, and CodeXGLUE's line completion (arXiv 2102.04664)."""

from __future__ import annotations

from collections.abc import Iterator

from cachecraft.tasks.benchmark import BenchmarkTask, Sample
from cachecraft.tasks.data_files import DataFile
from cachecraft.tasks.entries import Entry, Text, checked
from cachecraft.tasks.longbench import longbench_task
from cachecraft.tasks.scoring.code_lines import line_similarity, readable
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

_LINE_END = "<EOL>"  # Python's token streams have it, Java's do not


class _Row(Entry):
    input: Text
    gt: Text


def code_tasks(sources: Sources) -> tuple[Task, ...]:
    """The four tasks."""
    return (
        longbench_task("code:lcc", "lcc", sources),
        longbench_task("code:repobench-p", "repobench-p", sources),
        *(_line_task(language, sources) for language in ("python", "java")),
    )


def _line_task(language: str, sources: Sources) -> BenchmarkTask:
    def held() -> list[DataFile]:
        return [file for file in sources.benchmark("line_completion") if _language(file) == language]

    folder = "py150" if language == "python" else "javaCorpus"
    return BenchmarkTask(
        name=f"code:line_{language}",
        read=lambda: [sample for file in held() for sample in _samples(file)],
        metric=lambda answer, item: line_similarity(answer, item.references[0]),
        max_new_tokens=64,
        needs=lambda: (
            "" if held() else f"needs CodeXGLUE's line completion, {folder}/dev.json or the zip: give it with --data"
        ),
        too_long="start",
        skip_long=sources.skip_long,
    )


def _language(file: DataFile) -> str:
    return "python" if any(_LINE_END in str(entry) for entry in file.content[:20]) else "java"


def _samples(file: DataFile) -> Iterator[Sample]:
    for place, entry in file.entries():
        row = checked(_Row, entry, file.name, place)
        line = readable(row.gt).strip()
        if not line:  # a placeholder alone: there is nothing to complete
            continue
        before = readable(row.input)
        cut = max(before.rfind("\n") + 1, len(before) - 200)  # the line that is begun is what is asked
        context, question = before[:cut], before[cut:]
        yield Sample(
            place=f"{place.rstrip(', ')} of {file.name}",
            context=context or question,
            question=question if context else "",
            answers=(line,),
            chat=False,
        )
