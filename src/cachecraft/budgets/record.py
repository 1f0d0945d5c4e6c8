"""What a search has measured, in its run's SQLite file: each vector's fitness on each item, as it comes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from cachecraft.budgets.evolkv import Vector
from cachecraft.errors import RunError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS fitness (
  candidate TEXT NOT NULL, item TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (candidate, item));
CREATE TABLE IF NOT EXISTS notes (candidate TEXT PRIMARY KEY, note TEXT NOT NULL);
"""


def vector_key(vector: Vector) -> str:
    """A vector as text, numbers in full."""
    return json.dumps([vector.budgets, vector.factors])


class FitnessRecord:
    """An open record; a kill at any moment leaves every item that was measured whole."""

    def __init__(self, folder: Path) -> None:
        """Open the run's database and read what it holds.

        Raises:
            RunError: It cannot be read or written.
        """
        self._folder = folder
        try:
            self._connection = sqlite3.connect(folder / "run.sqlite", timeout=30)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(_SCHEMA)
            rows = self._connection.execute("SELECT candidate, item, value FROM fitness").fetchall()
            self._notes = dict(self._connection.execute("SELECT candidate, note FROM notes"))
        except sqlite3.Error as error:
            raise RunError(f"The search in {folder} cannot be opened ({error}); name another with --run.") from error
        self._values = {(candidate, item): float(value) for candidate, item, value in rows}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def get(self, candidate: str, item: str) -> float | None:
        """The fitness of a candidate on an item, if it was measured."""
        return self._values.get((candidate, item))

    def note(self, candidate: str) -> str:
        """What of a candidate's allocation had to give way on some item, in one sentence; "" if nothing had."""
        return str(self._notes.get(candidate, ""))

    def add(self, item: str, values: Mapping[str, float], notes: Mapping[str, str] | None = None) -> None:
        """Store what was measured on an item, all or nothing.

        Args:
            item: Its id.
            values: Fitness by candidate.
            notes: By candidate what of its allocation had to give way; "" for nothing.

        Raises:
            RunError: The disk is full or the folder is not writable.
        """
        told = {candidate: note for candidate, note in (notes or {}).items() if note}
        rows = [(candidate, item, value) for candidate, value in values.items()]
        try:
            with self._connection:
                self._connection.executemany("INSERT OR REPLACE INTO fitness VALUES (?,?,?)", rows)
                self._connection.executemany("INSERT OR IGNORE INTO notes VALUES (?,?)", told.items())
        except sqlite3.Error as error:
            raise RunError(
                f"What was measured could not be written to {self._folder} ({error}); free some space and run the same "
                "command again: what was measured before is kept."
            ) from error
        self._notes = told | self._notes
        self._values |= {(candidate, item): value for candidate, item, value in rows}
