"""The run folder: `run.yaml` with the resolved settings and `run.sqlite` with every result under its content id.

Results are added one sample at a time, each in one transaction, so that a kill at any moment loses at most the few
samples in flight. A failure is stored as a state with its reason, never as a number.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from cachecraft.errors import RunError

State = Literal["ok", "rejected"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
  id TEXT PRIMARY KEY, task TEXT NOT NULL, item TEXT NOT NULL, number INTEGER NOT NULL, cluster TEXT NOT NULL,
  label TEXT NOT NULL, policy TEXT NOT NULL, budget TEXT NOT NULL, reference INTEGER NOT NULL, scoring TEXT NOT NULL,
  state TEXT NOT NULL, value REAL, reason TEXT NOT NULL, tokens INTEGER NOT NULL, kept_bytes INTEGER NOT NULL,
  full_bytes INTEGER NOT NULL, forced INTEGER NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (
  item TEXT PRIMARY KEY, task TEXT NOT NULL, number INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS policies (policy TEXT PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS readings (moment TEXT NOT NULL, split TEXT NOT NULL, purpose TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Result:
    """One measured cell of one item.

    Attributes:
        id: Content hash of everything that can change the result.
        task, item, number, cluster: The task's name, the item's content id, its index, and its document.
        label, policy, budget, reference: The row's name, the policy's id, the budget's label, whether a reference line.
        scoring: ``answer``, ``likelihood`` or ``fidelity``.
        state: ``ok``, or ``rejected`` when the policy broke the contract; `reason` says how.
        value: The score: the task's metric, the mean log-probability in nats, or the token agreement; None if rejected.
        tokens: Entries of the context. kept_bytes, full_bytes: Of the compressed and the whole cache.
        forced: Whether protection left nothing to the scorer.
        detail: What else was seen: the answer, forced_match, kl; `retention` as evaluation/retention.py makes it.
    """

    id: str
    task: str
    item: str
    number: int
    cluster: str
    label: str
    policy: str
    budget: str
    reference: bool
    scoring: str
    state: State
    value: float | None
    reason: str
    tokens: int
    kept_bytes: int
    full_bytes: int
    forced: bool = False
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Only a finite float is ever a value, and only of a result that is ok."""
        good = type(self.value) is float and math.isfinite(self.value)
        if (self.state == "ok") != good:
            raise RunError(f"A result in state {self.state!r} cannot have the value {self.value!r}.")


_COLUMNS = tuple(f.name for f in fields(Result))


class RunStore:
    """An open run folder."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, settings: dict[str, Any]) -> None:
        """Use `open_run` or `read_run` instead."""
        self.folder, self.settings = folder, settings
        self._connection = connection

    def done(self, ids: Iterable[str]) -> set[str]:
        """Which of these result ids are stored already."""
        wanted = list(ids)
        found: set[str] = set()
        for first in range(0, len(wanted), 500):
            part = wanted[first : first + 500]
            marks = ",".join("?" * len(part))
            found |= {row[0] for row in self._connection.execute(f"SELECT id FROM results WHERE id IN ({marks})", part)}
        return found

    def add(self, results: Sequence[Result], item_text: dict[str, Any] | None = None) -> None:
        """Store the results of one item and the ends of its prompt, all or nothing.

        Raises:
            RunError: The disk is full or the folder is not writable.
        """
        marks = ",".join("?" * len(_COLUMNS))
        try:
            with self._connection:
                if item_text is not None and results:
                    first = results[0]
                    self._connection.execute(
                        "INSERT OR REPLACE INTO items VALUES (?,?,?,?)",
                        (first.item, first.task, first.number, json.dumps(item_text)),
                    )
                self._connection.executemany(
                    f"INSERT OR REPLACE INTO results ({','.join(_COLUMNS)}) VALUES ({marks})",
                    [_row(result) for result in results],
                )
        except sqlite3.Error as error:
            raise RunError(
                f"Results could not be written to {self.folder} ({error}); what was measured before is kept: "
                "free some space and run the same command again."
            ) from error

    def add_policies(self, policies: Iterable[tuple[str, str, str]]) -> None:
        """Store the programs measured, as (id, name, source)."""
        with self._connection:
            self._connection.executemany("INSERT OR IGNORE INTO policies VALUES (?,?,?)", list(policies))

    def log_reading(self, split: str, purpose: str, moment: str) -> None:
        """Note in the ledger that a split's items were read, and what for."""
        with self._connection:
            self._connection.execute("INSERT INTO readings VALUES (?,?,?)", (moment, split, purpose))

    def readings(self) -> list[tuple[str, str, str]]:
        """The ledger: (moment, split, purpose) of each reading."""
        return list(self._connection.execute("SELECT moment, split, purpose FROM readings ORDER BY moment"))

    def results(self, ids: Iterable[str] | None = None) -> list[Result]:
        """All stored results, or those with these ids, by task, item number, label and budget."""
        wanted = None if ids is None else set(ids)
        rows = self._connection.execute(
            f"SELECT {','.join(_COLUMNS)} FROM results ORDER BY task, number, label, budget, id"
        )
        found = []
        for row in rows:
            values = dict(zip(_COLUMNS, row, strict=True))
            if wanted is None or values["id"] in wanted:
                values |= {k: bool(values[k]) for k in ("reference", "forced")}
                values["detail"] = json.loads(values["detail"])
                found.append(Result(**values))
        return found

    def item_texts(self) -> dict[str, dict[str, Any]]:
        """The stored ends of each item's prompt, by item id."""
        return {item: json.loads(text) for item, text in self._connection.execute("SELECT item, text FROM items")}

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


def _row(result: Result) -> tuple[Any, ...]:
    values = asdict(result)
    values["detail"] = json.dumps(result.detail)
    return tuple(values[name] for name in _COLUMNS)


def open_run(folder: Path, settings: dict[str, Any], identity: Sequence[str], replaced: Sequence[str] = ()) -> RunStore:
    """Open a run folder for writing, making it when there is none.

    Args:
        folder: The run's folder.
        settings: The resolved settings of this command.
        identity: Names of the settings in which a folder's commands must agree; the others may grow.
        replaced: Names of settings of which nothing was made use of yet: this command's take the place of the old ones.

    Raises:
        RunError: The folder belongs to other settings, is something else, or cannot be written.
    """
    path = folder / "run.yaml"
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; name a folder for the run.")
    if path.is_file():
        before = {name: value for name, value in _read_settings(path).items() if name not in replaced}
        for name in (each for each in identity if each not in replaced):
            for what, old, new in _disagreements(name, before.get(name), settings.get(name)):
                raise RunError(
                    f"{folder} holds a run with {what} {old!r}, not {new!r}; name another folder with --run."
                )
        settings = _grown(before, settings)
    elif folder.is_dir() and any(folder.iterdir()) and not (folder / "run.sqlite").exists():
        raise RunError(f"{folder} is not empty and not a run; name another folder with --run.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".run.yaml.{os.getpid()}"
        partial.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        os.replace(partial, path)
        connection = sqlite3.connect(folder / "run.sqlite", timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_SCHEMA)
    except (OSError, sqlite3.Error) as error:
        raise RunError(f"The run folder {folder} cannot be written ({error}); name another with --run.") from error
    return RunStore(folder, connection, settings)


def read_run(folder: Path) -> RunStore:
    """Open an existing run folder for reading.

    Raises:
        RunError: There is no run in it.
    """
    database = folder / "run.sqlite"
    if not (folder / "run.yaml").is_file() or not database.is_file():
        raise RunError(f"{folder} is not a run folder: it has no run.yaml and run.sqlite.")
    try:
        connection = sqlite3.connect(database, timeout=30)
        connection.executescript(_SCHEMA)
    except sqlite3.Error as error:
        raise RunError(f"The results in {folder} cannot be read ({error}).") from error
    return RunStore(folder, connection, _read_settings(folder / "run.yaml"))


def read_evaluation(folder: Path) -> RunStore:
    """Open the folder of an evaluation for reading.

    Raises:
        RunError: There is no run in it, or another command made it.
    """
    path = folder / "run.yaml"
    command = _read_settings(path).get("command", "evaluate") if path.is_file() else "evaluate"
    if command != "evaluate":  # found before the database is opened, which would add tables to it
        raise RunError(f"{folder} was made by `cachecraft {command}`; name a folder of `cachecraft evaluate`.")
    return read_run(folder)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read ({error}).") from error
    if not isinstance(settings, dict):
        raise RunError(f"{path} does not hold settings; it was not written by CacheCraft.")
    if isinstance(settings.get("length"), int) and settings.get("command") == "evaluate":
        settings["length"] = [settings["length"]]  # as it was written before a run could have several
    if settings.get("diagnosis") is False:
        settings["diagnosis"] = "off"  # as a search without is written now
    return settings


def _disagreements(name: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """What differs, the old and the new value: of a mapping, only keys that both have; unset is the same as off."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [(f"{name} of {key}", old[key], new[key]) for key in new if key in old and old[key] != new[key]]
    return [(name, old, new)] if old != new and (old or new) and not isinstance(new, dict) else []


def _grown(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The settings of both commands: lists and mappings are united, numbers take the larger, the rest the newer."""
    grown = dict(before)
    for name, value in now.items():
        old = before.get(name)
        if isinstance(value, list) and isinstance(old, list):
            grown[name] = [*old, *[entry for entry in value if entry not in old]]
        elif isinstance(value, dict) and isinstance(old, dict):
            grown[name] = _grown(old, value)
        elif isinstance(value, int) and isinstance(old, int) and not isinstance(value, bool):
            grown[name] = max(value, old)
        else:
            grown[name] = value
    return grown
