"""The forms that published data files have, each known by its first entry.

What a form's fields mean is the business of the tasks that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Form = Literal[
    "squad",
    "hotpot",
    "longbench",
    "longbench_v2",
    "mini_longbench",
    "gsm8k",
    "math",
    "kv_retrieval",
    "longeval",
    "line_completion",
]
FORMS: Mapping[Form, str] = {
    "squad": "SQuAD",
    "hotpot": "HotpotQA",
    "longbench": "LongBench",
    "longbench_v2": "LongBench v2",
    "mini_longbench": "MiniLongBench",
    "gsm8k": "GSM8K",
    "math": "MATH",
    "kv_retrieval": "key-value retrieval",
    "longeval": "LongEval",
    "line_completion": "CodeXGLUE",
}
# What the first entry of each form has; the first that fits counts.
_MARKS: Sequence[tuple[Form, frozenset[str]]] = (
    ("longbench_v2", frozenset({"context", "question", "choice_A"})),
    ("longbench", frozenset({"context", "input", "answers"})),
    ("kv_retrieval", frozenset({"ordered_kv_records", "key"})),
    ("longeval", frozenset({"prompt", "expected_number"})),
    ("line_completion", frozenset({"input", "gt"})),
    ("math", frozenset({"problem", "solution"})),
)


def form_of(content: Any) -> Form | None:
    """Known by its first entry alone, so that an entry that is wrong further on is named and not passed over."""
    if isinstance(content, dict):
        first = next(iter(content.values()), None)
        if isinstance(first, dict) and "origin_prompt" in first:
            return "mini_longbench"
        return "squad" if "data" in content else None
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict) or "metric" in first:  # a file of tasks of one's own
        return None
    for form, fields in _MARKS:
        if fields <= first.keys():
            return form
    if "question" in first and "context" in first:
        return "squad" if isinstance(first["context"], str) else "hotpot"
    return "gsm8k" if "question" in first and "####" in str(first.get("answer")) else None


def described(content: Any) -> str:
    """What a content of none of the forms looks like, for a message."""
    if isinstance(content, list):
        return f"its first entry {_fields(content[0])}" if content else "it is empty"
    return f"it {_fields(content)}"


def _fields(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"is {type(entry).__name__}, not an object with fields"
    if {"context", "question", "metric"} & entry.keys():
        return f"has the fields {_named(entry)} (a file of tasks of your own is named with --tasks)"
    return f"has the fields {_named(entry)}"


def _named(entry: Iterable[str]) -> str:
    return ", ".join(map(repr, list(entry)[:8])) or "none"
