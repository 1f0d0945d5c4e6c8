"""The single items of an evaluation, for the page to show behind a click: prompt, references, every answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachecraft.evaluation.store import Result
from cachecraft.reporting.samples import ends_of

MOST = 1_500_000  # characters of items in one page; beyond that it holds the first items of each task
LONG = 600  # characters of an answer


@dataclass(frozen=True)
class Samples:
    """Items for the page.

    Attributes:
        key: Which section they belong to.
        data: For the page's script.
        left_out: Items that did not fit.
    """

    key: str
    data: dict[str, Any]
    left_out: int


def samples_of(
    results: Sequence[Result],
    texts: Mapping[str, Mapping[str, Any]],
    key: str,
    length: Callable[[Result], int],
) -> Samples | None:
    """Choose items, the first ones of each task, as many as fit.

    Args:
        results: Of one run.
        texts: The stored ends of each item's prompt.
        key: Unlike that of any other section of the page.
        length: The length in tokens that a result's item was made for; told where there are several.
    """
    by_item: dict[tuple[int, str, int, str], list[Result]] = {}
    for result in results:
        by_item.setdefault((result.number, result.task, length(result), result.item), []).append(result)
    several = len({tokens for _, _, tokens, _ in by_item}) > 1
    items: list[dict[str, Any]] = []
    room = MOST
    for (number, task, tokens, item), own in sorted(by_item.items()):
        entry = _entry(number, task, own, texts.get(item, {})) | ({"length": tokens} if several else {})
        room -= sum(len(str(value)) for value in entry.values())
        if room < 0 and items:
            break
        items.append(entry)
    if not items:
        return None
    items.sort(key=lambda entry: (entry["task"], entry.get("length", 0), entry["number"]))
    return Samples(key, {"items": items}, len(by_item) - len(items))


def _entry(number: int, task: str, results: Sequence[Result], text: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for result in results:
        kept = round(100 * result.kept_bytes / result.full_bytes) if result.full_bytes else 0
        value = None if result.value is None else round(result.value, 4)
        rows.append([result.label, result.budget, result.scoring, value, kept, _said(result)])
    return {
        "number": number,
        "task": task,
        "tokens": results[0].tokens,
        "context": " … ".join(filter(None, ends_of(text))),
        **{name: str(text.get(name) or "") for name in ("question", "answer_prefix")},
        **{name: _listed(text.get(name)) for name in ("references", "needles")},
        "rows": rows,
    }


def _said(result: Result) -> str:
    if result.state != "ok":
        return f"rejected: {result.reason}"
    if result.scoring == "answer":
        answer = str(result.detail.get("answer", ""))
        return answer if len(answer) <= LONG else f"{answer[:LONG]}…"
    return ", ".join(f"{name} {value}" for name, value in result.detail.items() if name != "retention")


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []
