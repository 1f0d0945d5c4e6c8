"""What a run's record of calls tells to others than the transport: whether there are replies, and what was refused.

Both read the run's database and leave it as it is; where it has no calls there is nothing to tell.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from cachecraft.errors import RunError


@dataclass(frozen=True)
class Refused:
    """A reply that became no candidate.

    Attributes:
        generation: The batch that it was asked for.
        model: Who gave it.
        fault: The kind, as `Fault` names it.
        sentence: Why, as the model was told.
    """

    generation: int
    model: str
    fault: str
    sentence: str


def read_refused(connection: sqlite3.Connection, before: int) -> list[Refused]:
    """The refused replies of the generations before `before`, in order; of one proposal only the last.

    Args:
        connection: To the run's database.
        before: The generation that is to be asked for: a batch that was begun and lost does not count.
    """
    if not _has_calls(connection):
        return []
    rows = connection.execute(
        "SELECT generation, slot, round, model, outcome, error FROM llm_calls WHERE generation < ? "
        "AND state = 'answered' AND outcome NOT IN ('', 'used') ORDER BY generation, round, slot, turn, number",
        (before,),
    )
    found = {row[:4]: Refused(row[0], *row[3:]) for row in rows}
    return list(found.values())


def has_replies(folder: Path) -> bool:
    """Whether a run's folder holds replies of a language model; there need be no run.

    Raises:
        RunError: Its database cannot be read.
    """
    path = folder / "run.sqlite"
    if not path.is_file():
        return False
    try:
        connection = sqlite3.connect(path, timeout=30)
        try:
            text = "SELECT 1 FROM llm_calls WHERE state = 'answered' LIMIT 1"
            return _has_calls(connection) and connection.execute(text).fetchone() is not None
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise RunError(f"The calls in {folder} cannot be read ({error}); name another run folder.") from error


def _has_calls(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'llm_calls'")
    return found.fetchone() is not None
