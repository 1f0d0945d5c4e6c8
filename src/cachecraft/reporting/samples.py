"""Shows single items of a run: the ends of the prompt, the references, and a policy's answer at each budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cachecraft.errors import RunError, UnknownNameError
from cachecraft.evaluation.rows import told_apart
from cachecraft.evaluation.store import Result, read_evaluation


def print_samples(console: Console, folder: Path, *, policy: str, task: str, limit: int = 5) -> None:
    """Print up to `limit` items of a task.

    Args:
        console: Where to print.
        folder: The run's folder.
        policy: A row's name.
        task: A task's name, ``ruler:`` may be left out.
        limit: The most items.

    Raises:
        UnknownNameError: The run has no such row or task.
        RunError: The folder is no run, or holds nothing of that row on that task.
    """
    if limit < 1:
        raise RunError(f"{limit} items cannot be shown; ask for at least 1.")
    task, results, texts = results_of(folder, policy=policy, task=task)
    items: dict[int, list[Result]] = {}
    for result in results:
        items.setdefault(result.number, []).append(result)
    for number in sorted(items)[:limit]:
        _print_item(console, number, task, items[number], texts.get(items[number][0].item, {}))
    if len(items) > limit:
        console.print(f"{len(items) - limit} more; --limit {len(items)} shows all.", markup=False)


def results_of(folder: Path, *, policy: str, task: str) -> tuple[str, list[Result], dict[str, dict[str, Any]]]:
    """The full name of a task, a row's results on it and the stored texts of its items; see `print_samples`."""
    store = read_evaluation(folder)
    results, texts = told_apart(store.results()), store.item_texts()
    store.close()
    labels, tasks = {r.label for r in results}, {r.task for r in results}
    if policy not in labels:
        raise UnknownNameError("row in this run", policy, labels)
    if task not in tasks and f"ruler:{task}" in tasks:
        task = f"ruler:{task}"
    if task not in tasks:
        raise UnknownNameError("task in this run", task, tasks)
    found = [result for result in results if result.label == policy and result.task == task]
    if not found:
        raise RunError(f"{folder} holds nothing of {policy} on {task} yet.")
    return task, found, texts


def _print_item(console: Console, number: int, task: str, results: list[Result], text: dict[str, object]) -> None:
    def line(name: str, value: object) -> None:
        console.print(f"  {name:<10} {value}", markup=False, soft_wrap=True)

    console.print(f"{task}, item {number}, {results[0].tokens} entries", style="bold", markup=False)
    start, end = ends_of(text)
    line("context", f"{_flat(start, 60)} … {_flat(end, 60, end=True)}" if end else _flat(start, 120))
    for needle in _listed(text.get("needles")):
        line("needle", _flat(needle, 200))
    line("question", _flat(text.get("question"), 300))
    line("prefix", _flat(text.get("answer_prefix"), 300))
    line("expected", ", ".join(_listed(text.get("references"))))
    for result in results:
        kept = f"{100 * result.kept_bytes / result.full_bytes:.0f} % kept"
        if result.state != "ok":
            line(result.budget, f"rejected: {result.reason}")
        elif result.scoring == "answer":
            line(result.budget, f"{result.value:.2f}  ({kept})  {_flat(result.detail.get('answer'), 200)!r}")
        else:
            extra = ", ".join(f"{key} {value}" for key, value in result.detail.items() if key != "retention")
            line(result.budget, f"{result.scoring} {result.value:.3f}  ({kept})  {extra}")
    console.print()


def ends_of(text: Mapping[str, object]) -> tuple[str, str]:
    """The beginning and the end of an item's context; of one that is stored whole, all of it and ""."""
    start, end = (str(text.get(name) or "") for name in ("context_start", "context_end"))
    return start, "" if end == start else end  # runs that are older stored a short one twice


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _flat(value: object, most: int, *, end: bool = False) -> str:
    flat = " ".join(str(value or "").split())
    if len(flat) <= most:
        return flat
    return f"…{flat[-most:]}" if end else f"{flat[:most]}…"
