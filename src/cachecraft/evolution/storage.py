"""The tables of a population in the run's SQLite file, and reading candidates back from them. No decisions here."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from cachecraft.errors import RunError
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.records import Candidate, Cost, Fitness, Outcome, Proposal, Score, pooled

SCHEMA = """
CREATE TABLE IF NOT EXISTS population (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS generations (number INTEGER PRIMARY KEY, closed INTEGER NOT NULL, interface TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS candidates (
  number INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slot INTEGER NOT NULL, island INTEGER NOT NULL,
  source TEXT NOT NULL, program TEXT NOT NULL, operator TEXT NOT NULL, note TEXT NOT NULL, cost TEXT NOT NULL,
  proposer TEXT NOT NULL, interface TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, stage TEXT NOT NULL,
  attempts INTEGER NOT NULL, signature TEXT NOT NULL, recency REAL, agreement REAL, cost_class TEXT NOT NULL,
  seconds REAL NOT NULL, gain REAL, UNIQUE (generation, slot));
CREATE INDEX IF NOT EXISTS candidates_program ON candidates (program);
CREATE TABLE IF NOT EXISTS candidate_parents (
  child INTEGER NOT NULL, place INTEGER NOT NULL, parent INTEGER NOT NULL, PRIMARY KEY (child, place));
CREATE TABLE IF NOT EXISTS candidate_fitness (
  candidate INTEGER NOT NULL, generation INTEGER NOT NULL, mean REAL NOT NULL, items INTEGER NOT NULL,
  spread REAL NOT NULL, PRIMARY KEY (candidate, generation));
CREATE TABLE IF NOT EXISTS candidate_scores (
  candidate INTEGER NOT NULL, generation INTEGER NOT NULL, stage TEXT NOT NULL, model TEXT NOT NULL, task TEXT NOT NULL,
  budget TEXT NOT NULL, value REAL NOT NULL, items INTEGER NOT NULL,
  PRIMARY KEY (candidate, generation, stage, model, task, budget));
CREATE TABLE IF NOT EXISTS rescorings (
  generation INTEGER NOT NULL, candidate INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  PRIMARY KEY (generation, candidate));
CREATE TABLE IF NOT EXISTS migrations (
  generation INTEGER NOT NULL, candidate INTEGER NOT NULL, island INTEGER NOT NULL, PRIMARY KEY (candidate, island));
"""


def connect(folder: Path) -> sqlite3.Connection:
    """Open the run's database and make the tables that are missing.

    Raises:
        RunError: The folder cannot be written or holds something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(folder / "run.sqlite", timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(SCHEMA)
    except (OSError, sqlite3.Error) as error:
        raise RunError(f"The population in {folder} cannot be opened ({error}); name another run folder.") from error
    return connection


def insert(connection: sqlite3.Connection, candidate: Candidate) -> None:
    """Add a new candidate; part of the caller's transaction."""
    proposal = candidate.proposal
    connection.execute(
        "INSERT INTO candidates VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            *(candidate.number, candidate.generation, candidate.slot, candidate.island),
            *(proposal.source, candidate.program, proposal.operator, proposal.note, json.dumps(asdict(proposal.cost))),
            *(proposal.proposer, json.dumps(candidate.interface.to_dict())),
            *(candidate.state, candidate.reason, candidate.stage, 0, "", None, None, "", 0.0, None),
        ),
    )
    connection.executemany(
        "INSERT INTO candidate_parents VALUES (?,?,?)",
        [(candidate.number, place, parent) for place, parent in enumerate(proposal.parents)],
    )


def write_behaviour(connection: sqlite3.Connection, number: int, signature: str, behaviour: Behaviour) -> None:
    """Store what a candidate keeps on the probe; part of the caller's transaction."""
    connection.execute(
        "UPDATE candidates SET signature = ?, recency = ?, agreement = ?, cost_class = ? WHERE number = ?",
        (signature, behaviour.recency, behaviour.agreement, behaviour.cost, number),
    )


def insert_outcome(connection: sqlite3.Connection, number: int, generation: int, outcome: Outcome) -> None:
    """Add what was measured of a candidate in a generation; part of the caller's transaction."""
    if outcome.fitness is not None:
        found = outcome.fitness
        connection.execute(
            "INSERT INTO candidate_fitness VALUES (?,?,?,?,?)",
            (number, generation, found.mean, found.items, found.spread),
        )
    connection.executemany(
        "INSERT INTO candidate_scores VALUES (?,?,?,?,?,?,?,?)",
        [
            (number, generation, each.stage, each.model, each.task, each.budget, each.value, each.items)
            for each in outcome.scores
        ],
    )


def read_candidates(connection: sqlite3.Connection, before: int, only: int | None = None) -> dict[int, Candidate]:
    """Every candidate by number (or one of them), with the fitness of the generations before `before`."""
    low, high = (only, only) if only is not None else (0, 1 << 62)
    parents: dict[int, list[int]] = defaultdict(list)
    for child, parent in connection.execute(
        "SELECT child, parent FROM candidate_parents WHERE child BETWEEN ? AND ? ORDER BY child, place", (low, high)
    ):
        parents[child].append(parent)
    parts: dict[int, list[Fitness]] = defaultdict(list)
    for number, mean, items, spread in connection.execute(
        "SELECT candidate, mean, items, spread FROM candidate_fitness "
        "WHERE generation < ? AND candidate BETWEEN ? AND ? ORDER BY generation",
        (before, low, high),
    ):
        parts[number].append(Fitness(mean, items, spread))
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    found = {}
    for row in cursor.execute("SELECT * FROM candidates WHERE number BETWEEN ? AND ? ORDER BY number", (low, high)):
        number = row["number"]
        behaviour = Behaviour(row["recency"], row["agreement"], row["cost_class"]) if row["cost_class"] else None
        found[number] = Candidate(
            **{name: row[name] for name in ("number", "generation", "slot", "island", "program", "gain")},
            **{name: row[name] for name in ("state", "reason", "stage", "attempts", "signature")},
            proposal=Proposal(
                source=row["source"],
                parents=tuple(parents[number]),
                operator=row["operator"],
                note=row["note"],
                proposer=row["proposer"],
                cost=Cost(**json.loads(row["cost"])),
            ),
            interface=Interface.from_dict(json.loads(row["interface"])),
            behaviour=behaviour,
            fitness=pooled(parts[number]) if parts[number] else None,
        )
    return found


def read_scores(connection: sqlite3.Connection, number: int) -> list[Score]:
    """What was measured of a candidate, in the order of generations, stages, models, tasks and budgets."""
    return [
        Score(*row)
        for row in connection.execute(
            "SELECT stage, model, task, budget, value, items FROM candidate_scores WHERE candidate = ? "
            "ORDER BY generation, stage, model, task, budget",
            (number,),
        )
    ]


def read_note(connection: sqlite3.Connection, name: str) -> str | None:
    """What is noted of the population under a name."""
    row = connection.execute("SELECT value FROM population WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def write_note(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Note something of the population, in place of what was noted before; part of the caller's transaction."""
    connection.execute("INSERT OR REPLACE INTO population VALUES (?, ?)", (name, value))


def read_stage_means(connection: sqlite3.Connection) -> dict[int, dict[str, float]]:
    """For each candidate that is ok the mean of its scores in each stage."""
    rows = connection.execute(
        "SELECT s.candidate, s.stage, SUM(s.value * s.items) / SUM(s.items) FROM candidate_scores s "
        "JOIN candidates c ON c.number = s.candidate WHERE c.state = 'ok' GROUP BY s.candidate, s.stage"
    )
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for number, stage, mean in rows:
        found[number][stage] = mean
    return dict(found)


def read_tasks(connection: sqlite3.Connection) -> list[str]:
    """The tasks that candidates were measured on, in order of their names."""
    return [row[0] for row in connection.execute("SELECT DISTINCT task FROM candidate_scores ORDER BY task")]


def count_states(connection: sqlite3.Connection) -> dict[str, int]:
    """Candidates by state; states without any are missing."""
    return dict(connection.execute("SELECT state, COUNT(*) FROM candidates GROUP BY state").fetchall())


def read_waiting(connection: sqlite3.Connection, generation: int) -> list[int]:
    """Candidates that a generation scores again and that have no outcome of it yet, in order."""
    rows = connection.execute(
        "SELECT candidate FROM rescorings WHERE generation = ? AND state = 'seen' ORDER BY candidate", (generation,)
    )
    return [row[0] for row in rows]


def fail_again(connection: sqlite3.Connection, generation: int) -> None:
    """Candidates that failed when a generation scored them again are no longer ok; part of the caller's transaction."""
    failed = connection.execute(
        "SELECT state, reason, candidate FROM rescorings WHERE generation = ? AND state != 'ok'", (generation,)
    )
    connection.executemany("UPDATE candidates SET state = ?, reason = ? WHERE number = ?", failed.fetchall())


def read_guests(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """Candidates that migrated, each with the island that it also lives on."""
    return connection.execute("SELECT candidate, island FROM migrations").fetchall()


class Transaction:
    """All or nothing; a database that cannot be written is said in one sentence."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._connection, self._folder = connection, folder

    def __enter__(self) -> None:
        self._connection.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._connection.__exit__(kind, error, at)
        except sqlite3.Error as found:
            error = found
        if isinstance(error, sqlite3.Error):
            raise RunError(
                f"The population in {self._folder} could not be written ({error}); what was stored before is kept."
            ) from error
