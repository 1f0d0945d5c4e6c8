"""Runs to report: an evaluation, discoveries of any size, a search of budgets; each with a name that is an attack."""

from __future__ import annotations

import json
import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachecraft.evaluation.store import Result, open_run
from cachecraft.evolution import storage
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.records import Candidate, Cost, Fitness, Outcome, Proposal, Score

ATTACK = "<script>alert(1)</script>"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
BODY = "\n".join(f"    part = part + {place} * f.values.norm(dim=-1)" for place in range(40))


def evaluation_run(folder: Path, *, items: int = 4, unfinished: bool = False) -> Path:
    """An evaluation of two tasks with four rows, one of them rejected and one called `ATTACK`."""
    settings = {
        "command": "evaluate",
        "model": "tiny",
        "dtype": "float32",
        "regime": "agnostic",
        "length": 64,
        "split": "test",
        "seed": 0,
        "tasks": ["ruler:vt", "ruler:cwe"],
        "samples": items,
        "scoring": ["answer"],
        "versions": {"torch": "2"},
    }
    store = open_run(folder, settings, [])
    retention = {"segments": {"answer": {"tokens": 3, "kept": 0.5}, "rest": {"tokens": 9, "kept": 0.25}}}
    for task in ("ruler:vt", "ruler:cwe"):
        for item in range(items):
            found = []
            rows = (("full", "0", 1.0), ("keydiff", "0.75", float(item % 2)), (ATTACK, "0.75", 0.5))
            for label, budget, value in rows:
                if unfinished and item == items - 1 and label == ATTACK:
                    continue
                detail: dict[str, Any] = {"answer": f"{BREAKOUT} {item}"}
                if label == "keydiff":
                    detail["retention"] = retention
                found.append(
                    Result(
                        id=f"{task}-{item}-{label}",
                        task=task,
                        item=f"{task}-{item}",
                        number=item,
                        cluster=f"{task}-{item}",
                        label=label,
                        policy=label,
                        budget=budget,
                        reference=label == "full",
                        scoring="answer",
                        state="ok",
                        value=value,
                        reason="",
                        tokens=64,
                        kept_bytes=100 if label == "full" else 25,
                        full_bytes=100,
                        detail=detail,
                    )
                )
            lost = {"state": "rejected", "value": None, "reason": "It kept -1.", "detail": {}, "kept_bytes": 0}
            found.append(replace(found[1], id=f"{task}-{item}-lost", label="lost", policy="lost", **lost))
            store.add(found, {"question": f"Which {BREAKOUT}?", "references": ["a"], "needles": [ATTACK]})
    store.close()
    return folder


def program(number: int) -> str:
    """Programs that share nearly all lines."""
    return f"def score_tokens(f):\n    part = {number} * f.keys.norm(dim=-1)\n{BODY}\n    return part  # {ATTACK}\n"


def candidate(number: int, draw: random.Random) -> Candidate:
    """A candidate of a batch of eight with an earlier parent; one in seven was rejected."""
    parents = (draw.randint(max(1, number - 40), number - 1),) if number > 8 else ()
    note = "Built-in policy keydiff" if number == 1 else f"Weight {number} {BREAKOUT}"
    good = number % 7 != 0
    return Candidate(
        number=number,
        generation=(number - 1) // 8,
        slot=(number - 1) % 8,
        island=0,
        proposal=Proposal(program(number), parents, "shift weight" if parents else "seed", note, "mutate", Cost()),
        program=f"{number:064d}",
        interface=Interface(),
        state="ok" if good else "rejected",
        reason="" if good else f"It kept {number} entries in '{ATTACK}'.",
        stage="full" if good else "contract",
        attempts=1,
        signature=str(number),
        behaviour=Behaviour(draw.random(), draw.random(), "O(T)"),
        fitness=None,
        gain=0.01 if good else None,
    )


def discovery_run(folder: Path, count: int, *, going_on: bool = False) -> Path:
    """A discovery with diagnoses and calls to a language model, written as the search writes it."""
    draw = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"command": "discover", "models": ["tiny"], "tasks": ["ruler:vt"], "ratios": [0.75], "length": 64}
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    connection = storage.connect(folder)
    with connection:
        for number in range(1, count + 1):
            each = candidate(number, draw)
            storage.insert(connection, each)
            connection.execute(
                "UPDATE candidates SET recency = ?, agreement = ?, cost_class = 'O(T)', stage = ? WHERE number = ?",
                (draw.random(), draw.random(), each.stage, number),
            )
            if each.state == "ok":
                mean = min(0.95, 0.2 + 0.5 * number / count + draw.gauss(0, 0.1))
                scores = tuple(Score("full", "tiny", f"ruler:vt{place}", "0.75", mean, 3) for place in range(4))
                outcome = Outcome("ok", "", "full", Fitness(mean, 3, 0.1), scores, 1.0)
                storage.insert_outcome(connection, number, each.generation, outcome)
        last = (count - 1) // 8
        closed = [(number, int(not going_on or number < last), "{}") for number in range(last + 1)]
        connection.executemany("INSERT INTO generations VALUES (?,?,?)", closed)
        connection.execute("INSERT INTO population VALUES ('seconds', '90.5')")
    with connection:
        connection.execute(
            "CREATE TABLE diagnoses (number, generation, candidate, kind, what, evidence, action, change, verdict, "
            "reviewed, result)"
        )
        row = (1, 1, 8, "stagnation", BREAKOUT, "no gain", "wider", "{}", "kept", None, "")
        connection.execute("INSERT INTO diagnoses VALUES (?,?,?,?,?,?,?,?,?,?,?)", row)
        connection.execute(
            "CREATE TABLE llm_calls (number, generation, slot, model, state, outcome, text, tokens_in, tokens_out, "
            "money, seconds)"
        )
        call = (1, 1, 2, "big-model", "done", "parsed", BREAKOUT, 10, None, None, 2.0)
        connection.execute("INSERT INTO llm_calls VALUES (?,?,?,?,?,?,?,?,?,?,?)", call)
    connection.close()
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
