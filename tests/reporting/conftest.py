"""Runs to report: an evaluation, discoveries of any size, a search of budgets; each with a name that is an attack."""

from __future__ import annotations

import itertools
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.synthetic_runs import ATTACK, BREAKOUT, discovery_run

from cachecraft.evaluation.store import Result, open_run


def evaluation_run(
    folder: Path, *, items: int = 4, unfinished: bool = False, lengths: tuple[int, ...] = (64,), **changes: Any
) -> Path:
    """An evaluation of two tasks with four rows, one of them rejected and one called `ATTACK`.

    Args:
        folder: Where to.
        items: Of each task and length.
        unfinished: Leave out the last item of one row.
        lengths: Tokens of the items.
        changes: Of the settings; scored by likelihood, values are negative.
    """
    settings = {
        "command": "evaluate",
        "model": "tiny",
        "dtype": "float32",
        "regime": "agnostic",
        "length": list(lengths),
        "split": "test",
        "seed": 0,
        "tasks": ["ruler:vt", "ruler:cwe"],
        "samples": items,
        "scoring": ["answer"],
        "versions": {"torch": "2"},
        **changes,
    }
    store = open_run(folder, settings, [])
    parts = {"answer": {"tokens": 3, "kept": 0.5}, "rest": {"tokens": 9, "kept": 0.25}}
    retention = {"segments": parts, "survived": {"answer": True}, "whole": {"answer": 0.5}}
    for task, length in itertools.product(("ruler:vt", "ruler:cwe"), lengths):
        for item in range(items):
            name = f"{task}-{length}-{item}"
            found = []
            rows = (("full", "0", 1.0), ("keydiff", "0.75", float(item % 2)), (ATTACK, "0.75", 0.5))
            for label, budget, value in rows:
                if unfinished and item == items - 1 and label == ATTACK:
                    continue
                likelihood = settings["scoring"] == ["likelihood"]
                detail: dict[str, Any] = {"forced_match": 1.0} if likelihood else {"answer": f"{BREAKOUT} {item}"}
                if label == "keydiff":
                    detail["retention"] = retention
                found.append(
                    Result(
                        id=f"{name}-{label}",
                        task=task,
                        item=name,
                        number=item,
                        cluster=name,
                        label=label,
                        policy=label,
                        budget=budget,
                        reference=label == "full",
                        scoring="likelihood" if likelihood else "answer",
                        state="ok",
                        value=value - 2.0 if likelihood else value,
                        reason="",
                        tokens=length,
                        kept_bytes=100 if label == "full" else 25,
                        full_bytes=100,
                        detail=detail,
                    )
                )
            lost = {"state": "rejected", "value": None, "reason": "It kept -1.", "detail": {}, "kept_bytes": 0}
            found.append(replace(found[1], id=f"{name}-lost", label="lost", policy="lost", **lost))
            text = {"question": f"Which {BREAKOUT}?", "references": ["a"], "needles": [ATTACK], "length": length}
            store.add(found, text | {"context_start": f"Of {length}.", "context_end": f"Of {length}."})
    store.close()
    return folder


def budget_run(folder: Path, *, finished: bool = True) -> Path:
    """A search of budgets over four layers."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"command": "budgets", "model": "tiny", "policy": "keydiff", "tasks": ["ruler:vt"], "target": "keep 16"}
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    connection = sqlite3.connect(folder / "run.sqlite")
    with connection:
        connection.execute("CREATE TABLE fitness (candidate TEXT, item TEXT, value REAL)")
        rows = [(json.dumps([[16 + n, 16, 16, 16 - n], [1.0]]), "item", 0.1 * n) for n in (0, 2, 1)]
        connection.executemany("INSERT INTO fitness VALUES (?,?,?)", [*rows, ("pyramid at 16", "item", 0.15)])
    connection.close()
    if finished:
        table = [{"name": "evolkv", "search": 0.2, "validation": 0.1}, {"name": ATTACK, "search": 0.15}]
        (folder / "budgets.json").write_text(json.dumps({"budgets": [18, 16, 16, 14], "target": 16, "table": table}))
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One finished run of each kind; a discovery's test is a run inside its folder."""
    folder = tmp_path_factory.mktemp("runs")
    found = {
        "evaluation": evaluation_run(folder / "evaluation"),
        "discovery": discovery_run(folder / "discovery", 40),
        "budgets": budget_run(folder / "budgets"),
    }
    evaluation_run(found["discovery"] / "test-0", items=1)
    return found
