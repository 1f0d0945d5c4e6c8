"""Retrieval from lists: key-value pairs (Liu et al., 2023, arXiv 2307.03172) and LongEval's lines (LMSYS, 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from cachecraft.tasks.benchmark import BenchmarkTask, Sample
from cachecraft.tasks.entries import Entry, Text, checked, wrong
from cachecraft.tasks.metrics import string_match_part
from cachecraft.tasks.scoring.final_answers import last_number
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

_KV_OPENING = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
_RECORD_ENDS = "\nNow the record is over."


class _Pairs(Entry):
    ordered_kv_records: list[tuple[str, str]] = Field(min_length=1)
    key: Text
    value: Text


class _Lines(Entry):
    prompt: Text
    expected_number: int


def kv_retrieval_tasks(sources: Sources) -> tuple[Task, ...]:
    """The value of one key of many, all random uuids."""
    return (
        BenchmarkTask(
            name="kv_retrieval",
            read=lambda: list(_pairs(sources)),
            metric=lambda answer, item: string_match_part(answer, item.references),
            max_new_tokens=100,
            needs=lambda: (
                "" if sources.benchmark("kv_retrieval") else "needs kv-retrieval-75_keys.jsonl.gz: give it with --data"
            ),
            skip_long=sources.skip_long,
        ),
    )


def longeval_tasks(sources: Sources) -> tuple[Task, ...]:
    """The number in one line of many."""
    return (
        BenchmarkTask(
            name="longeval",
            read=lambda: list(_lines(sources)),
            metric=lambda answer, item: last_number(answer, item.references[0]),
            max_new_tokens=100,
            needs=lambda: (
                "" if sources.benchmark("longeval") else "needs LongEval's 200_lines.jsonl: give it with --data"
            ),
            skip_long=sources.skip_long,
        ),
    )


def _pairs(sources: Sources) -> Iterator[Sample]:
    for file in sources.benchmark("kv_retrieval"):
        for place, entry in file.entries():
            row = checked(_Pairs, entry, file.name, place)
            if [row.key, row.value] not in [list(pair) for pair in row.ordered_kv_records]:
                raise wrong(file.name, place, ".key", f"{row.key!r} with its value is not among its records")
            yield Sample(
                place=f"{place.rstrip(', ')} of {file.name}",
                context=f"{_KV_OPENING}{_object(row.ordered_kv_records)}\n\n",
                question=f'Key: "{row.key}"\nCorresponding value:',
                answers=(row.value,),
                opening=len(_KV_OPENING),
            )


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    """The pairs as a JSON object, one in a line."""
    return "{" + ",\n ".join(f'"{key}": "{value}"' for key, value in pairs) + "}"


def _lines(sources: Sources) -> Iterator[Sample]:
    for file in sources.benchmark("longeval"):
        for place, entry in file.entries():
            row = checked(_Lines, entry, file.name, place)
            cut = row.prompt.rfind(_RECORD_ENDS)
            if cut < 0:
                raise wrong(file.name, place, ".prompt", "does not say where the record is over")
            yield Sample(
                place=f"{place.rstrip(', ')} of {file.name}",
                context=row.prompt[:cut],
                question=row.prompt[cut:],
                answers=(str(row.expected_number),),
                opening=row.prompt.find("\n\n") + 2,
            )
