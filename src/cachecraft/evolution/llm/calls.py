"""The record of every call to a language model, in the run's database: what was asked, answered, used and spent.

A call is written before it is sent, with the most that it can cost, and again when it is over: a kill in between leaves
it counted at its most. What cannot be known, as the tokens of a reply that never came, counts at its most against the
limits and is shown as unknown. Recorded replies are found again by where in the run they were asked for, so that a
resumed run pays for nothing twice and a replay needs no endpoint.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cachecraft.errors import RunError
from cachecraft.evolution.llm.recorded import Refused, read_refused

Message = Mapping[str, str]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS llm_calls (
  number INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slot INTEGER NOT NULL, round INTEGER NOT NULL,
  turn INTEGER NOT NULL, model TEXT NOT NULL, prompt TEXT NOT NULL, prompt_id TEXT NOT NULL, state TEXT NOT NULL,
  text TEXT, finish TEXT NOT NULL, refused INTEGER NOT NULL, outcome TEXT NOT NULL, error TEXT NOT NULL,
  tokens_in INTEGER, tokens_out INTEGER, money REAL, most_tokens INTEGER NOT NULL, most_money REAL,
  seconds REAL NOT NULL, moment TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE INDEX IF NOT EXISTS llm_calls_place ON llm_calls (generation, slot, round, turn);
"""


@dataclass(frozen=True)
class Place:
    """Where in a run a reply is asked for: the batch, the place in it, which try, and whether it is a repair (1)."""

    generation: int
    slot: int
    round: int = 0
    turn: int = 0


@dataclass(frozen=True)
class Reply:
    """What an endpoint answered.

    Attributes:
        text: The reply; None where there is none.
        finish: Why the model stopped, as the endpoint says.
        refused: Whether the endpoint marks it as a refusal.
        tokens_in, tokens_out: Tokens of prompt and reply, as the endpoint counts them; None where it does not.
    """

    text: str | None
    finish: str = "stop"
    refused: bool = False
    tokens_in: int | None = None
    tokens_out: int | None = None


@dataclass(frozen=True)
class Most:
    """The most that a call can use and cost; money is None where there is no price."""

    tokens: int
    money: float | None


@dataclass(frozen=True)
class Recorded:
    """A reply with the number of its call, and its cost in dollars where that is known."""

    call: int
    reply: Reply
    money: float | None


@dataclass(frozen=True)
class Answered:
    """An answered call: where it was asked, of whom, with what prompt, and what became of its reply."""

    place: Place
    model: str
    messages: tuple[Message, ...]
    reply: Reply
    outcome: str


@dataclass(frozen=True)
class Totals:
    """What a run's calls came to.

    Attributes:
        calls: Calls that were sent; `failed` of them brought no reply.
        tokens_in, tokens_out: As far as they are known.
        money: Dollars, as far as they are known; None where no call has a known cost.
        unknown: Calls of which the cost is not known.
        outcomes: Replies by what became of them: ``"used"`` or the fault's name.
        priced: Whether any call had a price.
    """

    calls: int
    failed: int
    tokens_in: int
    tokens_out: int
    money: float | None
    unknown: int
    outcomes: Mapping[str, int]
    priced: bool


@dataclass(frozen=True)
class Asked:
    """What one place of a batch asked of a model, in vain or not: tokens and dollars, as far as they are known."""

    generation: int
    slot: int
    model: str
    tokens_in: int
    tokens_out: int
    money: float | None


def prompt_id(messages: Sequence[Message]) -> str:
    """Content hash of a prompt, 32 hex digits."""
    return hashlib.sha256(json.dumps([dict(each) for each in messages]).encode()).hexdigest()[:32]


class Calls:
    """The calls of one run.

    Attributes:
        folder: The run's folder.
        heard: Called when a call is over, for displays.
    """

    def __init__(self, folder: Path) -> None:
        """Open the run's database.

        Raises:
            RunError: It cannot be written.
        """
        self.folder = folder
        self.heard: Callable[[], None] = lambda: None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(folder / "run.sqlite", timeout=30)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"The calls in {folder} cannot be opened ({error}); name another run folder.") from error

    def begin(self, place: Place, model: str, messages: Sequence[Message], most: Most) -> int:
        """Note that a call is about to be sent; its number."""
        row = (place.generation, place.slot, place.round, place.turn, model)
        text = json.dumps([dict(each) for each in messages])
        return self._write(
            "INSERT INTO llm_calls (generation, slot, round, turn, model, prompt, prompt_id, state, finish, refused, "
            "outcome, error, most_tokens, most_money, seconds) VALUES (?,?,?,?,?,?,?,'sent','',0,'','',?,?,0)",
            (*row, text, prompt_id(messages), most.tokens, most.money),
        )

    def answered(self, number: int, reply: Reply, money: float | None, seconds: float) -> None:
        """Note a call's reply."""
        self._write(
            "UPDATE llm_calls SET state = 'answered', text = ?, finish = ?, refused = ?, tokens_in = ?, "
            "tokens_out = ?, money = ?, seconds = ? WHERE number = ?",
            (reply.text, reply.finish, reply.refused, reply.tokens_in, reply.tokens_out, money, seconds, number),
        )
        self.heard()

    def failed(self, number: int, error: str, *, billed: bool, seconds: float) -> None:
        """Note that a call brought no reply; one that may be billed all the same counts at its most."""
        free = "" if billed else ", tokens_in = 0, tokens_out = 0, money = 0, most_tokens = 0, most_money = 0"
        self._write(
            f"UPDATE llm_calls SET state = 'failed', error = ?, seconds = ?{free} WHERE number = ?",
            (error, seconds, number),
        )
        self.heard()

    def judged(self, number: int, outcome: str, said: str = "") -> None:
        """Note what became of a reply: ``"used"``, or a fault's name and what was said of it."""
        self._write("UPDATE llm_calls SET outcome = ?, error = ? WHERE number = ?", (outcome, said, number))

    def find(self, place: Place, model: str, prompt: str | None) -> Recorded | None:
        """The reply that was recorded at a place of the run.

        Args:
            place: Where it was asked for.
            model: Of which model.
            prompt: Id of the prompt that it must answer; None for any.
        """
        row = self._connection.execute(
            "SELECT number, text, finish, refused, tokens_in, tokens_out, money FROM llm_calls "
            "WHERE generation = ? AND slot = ? AND round = ? AND turn = ? AND model = ? "
            "AND state = 'answered' AND (? IS NULL OR prompt_id = ?) "
            "ORDER BY number LIMIT 1",
            (place.generation, place.slot, place.round, place.turn, model, prompt, prompt),
        ).fetchone()
        return None if row is None else Recorded(row[0], Reply(row[1], row[2], bool(row[3]), row[4], row[5]), row[6])

    def failure(self, place: Place, model: str) -> str | None:
        """Why a place of the run has no reply of a model; None where nothing failed there."""
        row = self._connection.execute(
            "SELECT error FROM llm_calls WHERE generation = ? AND slot = ? AND round = ? AND turn = ? AND model = ? "
            "AND state = 'failed' ORDER BY number DESC LIMIT 1",
            (place.generation, place.slot, place.round, place.turn, model),
        ).fetchone()
        return None if row is None else str(row[0])

    def refused(self, before: int) -> list[Refused]:
        """Replies of the generations before that became no candidates."""
        return read_refused(self._connection, before)

    def answered_calls(self) -> list[Answered]:
        """Every call that was answered, in order."""
        rows = self._connection.execute(
            "SELECT generation, slot, round, turn, model, prompt, text, finish, refused, tokens_in, tokens_out, "
            "outcome FROM llm_calls WHERE state = 'answered' ORDER BY number"
        )
        return [
            Answered(
                Place(*row[:4]),
                row[4],
                tuple(json.loads(row[5])),
                Reply(row[6], row[7], bool(row[8]), *row[9:11]),
                row[11],
            )
            for row in rows
        ]

    def rounds(self, generation: int) -> int:
        """How many tries at a batch hold calls."""
        text = "SELECT COALESCE(MAX(round) + 1, 0) FROM llm_calls WHERE generation = ?"
        return int(self._connection.execute(text, (generation,)).fetchone()[0])

    def spent(self) -> Most:
        """Tokens and dollars used so far, everything that is not known counted at its most."""
        tokens, money = self._connection.execute(
            "SELECT TOTAL(COALESCE(tokens_in + tokens_out, most_tokens)), TOTAL(COALESCE(money, most_money)) "
            "FROM llm_calls"
        ).fetchone()
        return Most(int(tokens), float(money))

    def totals(self) -> Totals:
        """What all calls came to."""
        calls, failed, tokens_in, tokens_out, money, unknown, priced = self._connection.execute(
            "SELECT COUNT(*), TOTAL(state != 'answered'), TOTAL(tokens_in), TOTAL(tokens_out), SUM(money), "
            "TOTAL(money IS NULL), TOTAL((state = 'answered' AND money IS NOT NULL) "
            "OR (most_money IS NOT NULL AND most_tokens > 0)) FROM llm_calls"
        ).fetchone()
        outcomes = self._connection.execute(
            "SELECT outcome, COUNT(*) FROM llm_calls WHERE outcome != '' GROUP BY outcome "
            "ORDER BY COUNT(*) DESC, outcome"
        ).fetchall()
        counts = (calls, int(failed), int(tokens_in), int(tokens_out), money, int(unknown))
        return Totals(*counts, MappingProxyType(dict(outcomes)), priced > 0)

    def asked(self) -> list[Asked]:
        """What every place of every batch asked of each model, in order."""
        rows = self._connection.execute(
            "SELECT generation, slot, model, TOTAL(tokens_in), TOTAL(tokens_out), "
            "CASE WHEN TOTAL(money IS NULL AND state = 'answered') = 0 THEN TOTAL(money) END FROM llm_calls "
            "WHERE state != 'sent' GROUP BY generation, slot, model ORDER BY generation, slot, model"
        )
        return [
            Asked(generation, slot, model, int(tokens_in), int(tokens_out), money)
            for generation, slot, model, tokens_in, tokens_out, money in rows
        ]

    def _write(self, text: str, values: tuple[object, ...]) -> int:
        try:
            with self._connection:
                return int(self._connection.execute(text, values).lastrowid or 0)
        except sqlite3.Error as error:
            raise RunError(
                f"A call could not be stored in {self.folder} ({error}); what was stored before is kept."
            ) from error

    def close(self) -> None:
        """Close the file; what is stored stays."""
        self._connection.close()


def open_recorded(folder: Path) -> Calls:
    """The calls of a finished run, to replay them.

    Raises:
        RunError: The folder holds no recorded calls.
    """
    if not (folder / "run.sqlite").is_file():
        raise RunError(f"{folder} holds no run whose replies could be replayed.")
    calls = Calls(folder)
    if not calls.totals().calls:
        calls.close()
        raise RunError(f"{folder} holds no recorded replies; name a run that asked a language model.")
    return calls
