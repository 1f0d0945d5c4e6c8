"""Items as token ids, the same for every side of a comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecraft.evaluation.measure import split_prompt
from cachecraft.tasks.prompt import render
from cachecraft.tasks.registry import load_tasks
from cachecraft.tasks.task import Item


@dataclass(frozen=True)
class Sample:
    """One item, tokenised.

    Attributes:
        item: The item.
        context_ids: What is compressed.
        follow_ids: Question, template tail and answer prefix, run over the compressed context.
    """

    item: Item
    context_ids: tuple[int, ...]
    follow_ids: tuple[int, ...]


def make_samples(
    tokenizer: Any, tasks: Sequence[str], count: int, length: int, *, split: str = "test", seed: int = 0
) -> list[Sample]:
    """The first `count` items of each task, the tasks in turn."""
    loaded = load_tasks(tasks)
    items = [
        task.item(index, split=split, length=length, seed=seed, tokenizer=tokenizer)
        for index in range(count)
        for task in loaded
    ]
    return [Sample(item, *split_prompt(render(tokenizer, item), "agnostic")) for item in items]


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples as the JSON list that the peer reads."""
    entries = [
        {
            "task": sample.item.task,
            "index": sample.item.index,
            "length": sample.item.length,
            "context_ids": sample.context_ids,
            "follow_ids": sample.follow_ids,
            "max_new_tokens": sample.item.max_new_tokens,
        }
        for sample in samples
    ]
    path.write_text(json.dumps(entries))
