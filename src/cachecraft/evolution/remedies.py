"""What is done about a diagnosis: one action for each, recorded with its reason, and undone when it brings nothing.

An action changes the conduct of the search from the next batch on. After as many candidates as are looked back upon it
is reviewed: it stays if the best has risen beyond noise or what it was taken against is no longer seen. All of it is a
function of closed generations and is stored before the next batch is asked for, so that a resumed run goes on alike.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecraft.errors import RunError
from cachecraft.evolution.diagnosis import Finding, Thresholds, best_gain, diagnose, window
from cachecraft.evolution.fitness import predicts
from cachecraft.evolution.interface import Interface, Level
from cachecraft.evolution.llm.recorded import read_refused
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.protocol import Conduct

_SCHEMA = """
CREATE TABLE IF NOT EXISTS diagnoses (
  number INTEGER PRIMARY KEY, generation INTEGER NOT NULL, candidate INTEGER NOT NULL, kind TEXT NOT NULL,
  what TEXT NOT NULL, evidence TEXT NOT NULL, action TEXT NOT NULL, change TEXT NOT NULL, verdict TEXT NOT NULL,
  reviewed INTEGER, result TEXT NOT NULL);
"""
_WIDER: Mapping[Level, Level] = {
    "constants": "scorer",
    "selector": "scorer+selector",
    "scorer": "scorer+selector",
    "scorer+selector": "allocation",
}


@dataclass(frozen=True)
class Diagnosis:
    """A finding and what was done about it.

    Attributes:
        number: From 1.
        generation: First batch that it holds for.
        candidate: The last candidate before it.
        kind, what, evidence: The finding.
        action: In words.
        change: What of the conduct it changed.
        verdict: ``"in force"``, ``"kept"`` or ``"undone"``.
        reviewed: First batch after its review; None before.
        result: What it brought, in one sentence; "" before its review.
    """

    number: int
    generation: int
    candidate: int
    kind: str
    what: str
    evidence: str
    action: str
    change: Mapping[str, Any]
    verdict: str = "in force"
    reviewed: int | None = None
    result: str = ""


class Remedies:
    """The diagnoses of a run and the conduct that follows from them."""

    def __init__(self, folder: Path, start: Conduct, limits: Thresholds | None = None) -> None:
        """Open the run's diagnoses.

        Args:
            folder: The run's folder.
            start: The conduct that the run was begun with.
            limits: When something is called by its name.

        Raises:
            RunError: The run's database cannot be written.
        """
        self._folder, self._start, self._limits = folder, start, limits or Thresholds()
        self._connection = _connect(folder)

    def all(self) -> list[Diagnosis]:
        """Every diagnosis, in order."""
        return _read(self._connection)

    @property
    def conduct(self) -> Conduct:
        """What is in force for the next batch."""
        found = self._start
        for each in self.all():
            if each.verdict != "undone":
                found = found.changed(each.change)
        return found

    def review(self, population: Population) -> list[Diagnosis]:
        """Look at the closed generations: undo what brought nothing, and act on what is seen; at most one new action.

        Args:
            population: With no generation open. A generation that was reviewed is not reviewed again.

        Returns:
            The diagnoses that are new or have a new verdict.
        """
        if not population.told() or self._seen(population.generation):
            return []
        with self._connection:  # all of it or nothing: a kill in between must not lead another way
            changed = [self._judge(population, each) for each in self.all() if self._due(population, each)]
            if not changed:
                changed += self._act(population)
            self._connection.execute(
                "INSERT OR REPLACE INTO population VALUES ('reviewed', ?)", (population.generation,)
            )
        return changed

    def _seen(self, generation: int) -> bool:
        row = self._connection.execute("SELECT value FROM population WHERE name = 'reviewed'").fetchone()
        return row is not None and int(row[0]) >= generation

    def _due(self, population: Population, each: Diagnosis) -> bool:
        own = [c for c in population.told() if c.number > each.candidate and c.proposal.proposer != "seed"]
        return each.verdict == "in force" and len(own) >= self._limits.window

    def _judge(self, population: Population, each: Diagnosis) -> Diagnosis:
        gain, error = best_gain(population, each.candidate + 1)
        refused = read_refused(self._connection, population.generation)
        seen = diagnose(population, self._limits, refused=refused, since=each.generation)
        better = gain > self._limits.noise * error
        still = next((found for found in seen if (found.kind, found.what) == (each.kind, each.what)), None)
        said = f"the best rose by {gain:.4f}" if better else f"no gain beyond noise ({gain:.4f})"
        said += f"; still seen: {still.evidence}" if still else "; no longer seen"
        verdict = "kept" if better or still is None else "undone"
        self._connection.execute(
            "UPDATE diagnoses SET verdict = ?, reviewed = ?, result = ? WHERE number = ?",
            (verdict, population.generation, said, each.number),
        )
        return next(found for found in self.all() if found.number == each.number)

    def _act(self, population: Population) -> list[Diagnosis]:
        earlier, conduct = self.all(), self.conduct
        waiting = {(each.kind, each.what) for each in earlier if each.verdict == "in force"}
        tried = [each.change for each in earlier if each.verdict == "undone"]
        refused, since = read_refused(self._connection, population.generation), self._since(earlier)
        asked, left = window(population, self._limits.window, refused, since).asked, self._left(earlier)
        for finding in diagnose(population, self._limits, refused=refused, since=since):
            if (finding.kind, finding.what) in waiting:
                continue
            for action, change in _actions(finding, conduct, left):
                if change in tried or conduct.changed(change) == conduct:
                    continue
                if (set(change) == {"warnings"} and not asked) or ("gate" in change and not predicts(population)):
                    continue  # nobody would hear it, or everybody passes as it is
                last = population.told()[-1].number
                row = (population.generation, last, finding.kind, finding.what, finding.evidence, action)
                self._connection.execute(
                    "INSERT INTO diagnoses (generation, candidate, kind, what, evidence, action, change, verdict, "
                    "result) VALUES (?,?,?,?,?,?,?,'in force','')",
                    (*row, json.dumps(change, sort_keys=True)),
                )
                return [self.all()[-1]]
        return []

    @staticmethod
    def _since(earlier: list[Diagnosis]) -> int:
        """After an action is undone, what it led to is no evidence any more."""
        return max((each.reviewed for each in earlier if each.verdict == "undone" and each.reviewed), default=0)

    def _left(self, earlier: list[Diagnosis]) -> set[Level]:
        """Levels that what was done about hacks left: the holes are there."""
        found, left = self._start, set()
        for each in earlier:
            if each.verdict != "undone":
                if each.kind == "reward hack" and "level" in each.change:
                    left.add(found.interface.level)
                found = found.changed(each.change)
        return left

    def close(self) -> None:
        """Close the file; what is stored stays."""
        self._connection.close()


def _actions(finding: Finding, conduct: Conduct, left: Iterable[Level]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What may be done about a finding, the first choice first; no level that opens one of those that were left."""
    level = conduct.interface.level
    if finding.kind == "plateau":
        if conduct.interface.features is not None:
            yield "offered all features", {"features": None}
        while level in _WIDER:
            level = _WIDER[level]
            if any(Interface(level).editable >= Interface(each).editable for each in left):
                continue
            moved = "moved the interface to allocation, scorers and selectors staying as they are"
            yield moved if level == "allocation" else f"opened the interface to {level}", {"level": level}
        yield "drew parents evenly from the diverse set", {"evenly": True}
    elif finding.kind == "collapse":
        yield "began again from the diverse set: parents are drawn evenly from it", {"evenly": True}
    elif finding.kind == "overfit":
        yield "drew more fresh items: more elites are scored again", {"again": conduct.again + 4}
    elif finding.kind == "stage gap":
        yield "had every candidate measured on all items, whatever its quick score", {"gate": False}
    elif finding.kind == "constant tuning":
        yield "left out changes of numbers alone", {"structure": True}
    else:
        if finding.what in ("keeps another number than its budget", "selects with indices") and "selector" in level:
            yield "narrowed the interface to scorer: the harness selects", {"level": "scorer"}
        guard = {"warnings": [f"Programs that cheat: {finding.what}."]}
        if finding.what.startswith("knows places"):
            yield "added a guard: more leaders are scored on fresh items", guard | {"again": conduct.again + 4}
        yield "added a guard: proposers are told what is rejected", guard


def _connect(folder: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(folder / "run.sqlite", timeout=30)
        connection.executescript(_SCHEMA)
    except sqlite3.Error as error:
        raise RunError(f"The diagnoses in {folder} cannot be opened ({error}); name another run folder.") from error
    return connection


def _read(connection: sqlite3.Connection) -> list[Diagnosis]:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    rows = cursor.execute("SELECT * FROM diagnoses ORDER BY number").fetchall()
    return [Diagnosis(**(dict(row) | {"change": json.loads(row["change"])})) for row in rows]


def read_diagnoses(folder: Path) -> list[Diagnosis]:
    """Every diagnosis of a run, in order.

    Raises:
        RunError: The run's database cannot be opened.
    """
    connection = _connect(folder)
    try:
        return _read(connection)
    finally:
        connection.close()
