"""Run folders whose scores are known, written without a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

from cachecraft.evaluation.settings import IDENTITY
from cachecraft.evaluation.store import Result, open_run

SETTINGS = {
    "command": "evaluate",
    "model": "tiny",
    "revision": "r",
    "dtype": "float32",
    "regime": "agnostic",
    "split": "test",
    "seed": 0,
    "length": [512],
    "scoring": ["answer"],
}


def result(
    label: str, number: int, value: float | None, budget: str = "0.5", task: str = "t", **changes: object
) -> Result:
    fields = {
        "id": f"{label}{budget}{task}{number}",
        "task": task,
        "item": f"{task}{number}",
        "number": number,
        "cluster": f"{task}{number}",
        "label": label,
        "policy": label,
        "budget": budget,
        "reference": label == "full",
        "scoring": "answer",
        "state": "ok",
        "value": value,
        "reason": "",
        "tokens": 100,
        "kept_bytes": 100 if budget == "0" else int(100 * (1 - float(budget))),
        "full_bytes": 100,
    }
    return Result(**(fields | changes))  # type: ignore[arg-type]


def write(folder: Path, scores: Mapping[str, list[float]], **settings: object) -> Path:
    store = open_run(folder, SETTINGS | settings, IDENTITY)
    for label, values in scores.items():
        budget = "0" if label == "full" else "0.5"
        store.add([result(label, number, value, budget) for number, value in enumerate(values)], {"length": 512})
    store.close()
    return folder


def wide(seed: int, mean: float, count: int = 40) -> list[float]:
    rng = Random(seed)
    return [min(1.0, max(0.0, rng.gauss(mean, 0.1))) for _ in range(count)]
