"""Made-up runs of discoveries of any size, written as a search writes them, for reports to be timed and tested on."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import yaml

from cachecraft.evolution import storage
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.records import Candidate, Cost, Fitness, Outcome, Proposal, Score

BATCH = 8  # candidates
# Texts that would act if a page took them for markup.
ATTACK = "<script>alert(1)</script>"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
BODY = "\n".join(f"    part = part + {place} * f.values.norm(dim=-1)" for place in range(40))


def program(number: int) -> str:
    """Programs that share nearly all lines."""
    return f"def score_tokens(f):\n    part = {number} * f.keys.norm(dim=-1)\n{BODY}\n    return part  # {ATTACK}\n"


def candidate(number: int, draw: random.Random) -> Candidate:
    """A candidate of a batch with an earlier parent; one in seven was rejected."""
    parents = (draw.randint(max(1, number - 40), number - 1),) if number > BATCH else ()
    note = "Built-in policy keydiff" if number == 1 else f"Weight {number} {BREAKOUT}"
    good = number % 7 != 0
    return Candidate(
        number=number,
        generation=(number - 1) // BATCH,
        slot=(number - 1) % BATCH,
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
    """A discovery with diagnoses and calls to a language model; one that goes on is in the middle of its last batch."""
    draw = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"command": "discover", "models": ["tiny"], "tasks": ["ruler:vt"], "ratios": [0.75], "length": 64}
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    connection = storage.connect(folder)
    with connection:
        for number in range(1, count + 1):
            _insert(connection, number, count, draw)
        last = (count - 1) // BATCH
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
    if not going_on:
        (folder / "policies").mkdir(exist_ok=True)
        (folder / "policies" / "c0001.py").write_text(program(1))
    return folder


def add_batch(folder: Path) -> None:
    """Let a discovery of whole batches go on by one."""
    connection = storage.connect(folder)
    with connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM candidates").fetchone()
        for number in range(count + 1, count + BATCH + 1):
            _insert(connection, number, count + BATCH, random.Random(number))
        connection.execute("INSERT INTO generations VALUES (?, 1, '{}')", (count // BATCH,))
    connection.close()


def _insert(connection: sqlite3.Connection, number: int, count: int, draw: random.Random) -> None:
    """One of so many candidates, with its outcome."""
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
