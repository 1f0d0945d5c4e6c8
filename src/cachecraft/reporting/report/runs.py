"""Opens run folders to be looked at: read-only, whatever state they are in, while others may be writing to them.

Nothing here makes a table, a file or a decision. All that is read of a folder comes from one snapshot of its database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cachecraft.errors import RunError

DATABASE, SETTINGS = "run.sqlite", "run.yaml"
# What a report is made from; a discovery's end is told by its folder of policies.
_FILES = (DATABASE, f"{DATABASE}-wal", SETTINGS, "budgets.json", "positions.json", "policies")
WAIT = 5.0  # seconds for a writer to let go; a report is no reason to disturb a run for longer


@dataclass(frozen=True)
class RunFolder:
    """A run as it stands.

    Attributes:
        folder: Its folder.
        settings: From run.yaml.
        connection: A read-only connection, in a transaction.
        tables: Names of the database's tables that exist.
    """

    folder: Path
    settings: Mapping[str, Any]
    connection: sqlite3.Connection
    tables: frozenset[str]

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.folder.resolve().name or str(self.folder)

    def rows(self, table: str, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query about a table, none where the table is missing."""
        return self.connection.execute(query, tuple(values)).fetchall() if table in self.tables else []

    def count(self, table: str) -> int:
        """How many rows a table has, 0 where it is missing."""
        return int(self.rows(table, f"SELECT COUNT(*) FROM {table}")[0][0]) if table in self.tables else 0


@contextmanager
def opened(folder: Path) -> Iterator[RunFolder]:
    """Open a run to be looked at.

    Args:
        folder: The run's folder.

    Raises:
        RunError: It is no run folder, or what is in it cannot be read.
    """
    database = folder / DATABASE
    if missing := [name for name in (SETTINGS, DATABASE) if not (folder / name).is_file()]:
        lacks = f"it has no {' and no '.join(missing)}" if folder.is_dir() else "there is no such folder"
        raise RunError(f"{folder} is not a run folder: {lacks}.")
    settings = _settings(folder / SETTINGS)
    connection = None
    try:
        connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=WAIT)
        connection.execute("BEGIN")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        yield RunFolder(folder, settings, connection, frozenset(row[0] for row in names))
    except sqlite3.Error as error:
        raise RunError(f"The results in {folder} cannot be read ({error}); is {database} damaged?") from error
    finally:
        if connection is not None:
            connection.close()


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read ({' '.join(str(error).split())}).") from error
    if not isinstance(settings, dict):
        raise RunError(f"{path} does not hold settings; it was not written by CacheCraft.")
    return settings


def parts(folder: Path) -> list[Path]:
    """A run and the evaluations inside it, such as a discovery's tests, those first that a reader wants first."""
    inner = sorted(path.parent for path in folder.glob(f"test-*/{SETTINGS}") if (path.parent / DATABASE).is_file())
    return [*inner, folder]


def stamp(folders: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Something that changes whenever what a report is made from does; costs a look at a few files' dates."""
    found = []
    for folder in folders:
        for own in parts(folder):
            for name in _FILES:
                try:
                    seen = (own / name).stat()
                except OSError:
                    continue
                found.append((str(own / name), seen.st_mtime_ns, seen.st_size))
    return tuple(found)
