"""Tasks: what a model is asked, how the prompt is cut into pieces, and how an answer is scored."""

from __future__ import annotations

from cachecraft.chat import Tokenizer
from cachecraft.tasks.metrics import string_match_all, string_match_part
from cachecraft.tasks.prompt import Prompt, render
from cachecraft.tasks.registry import Choice, choose_tasks, load_tasks, task_names
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import SPLITS, Item, Segment, Task, item_seed

__all__ = [
    "SPLITS",
    "Choice",
    "Item",
    "Prompt",
    "Segment",
    "Sources",
    "Task",
    "Tokenizer",
    "choose_tasks",
    "item_seed",
    "load_tasks",
    "render",
    "string_match_all",
    "string_match_part",
    "task_names",
]
