"""The population of a run: every candidate ever proposed, kept in the run's database, in closed generations.

A generation is one batch: proposals (and elites to be scored again) are stored when they are asked for, outcomes as
they come in from any number of workers, and all of them begin to count together when the generation is closed. What
the search sees therefore depends on closed generations only: not on the number of workers, nor on who finished first,
nor on kills in between. A kill loses at most the evaluations in flight; nothing is counted twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from cachecraft.errors import RunError
from cachecraft.evolution import storage
from cachecraft.evolution.archive import Archive, build_archive
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.program import program_id
from cachecraft.evolution.records import STATES, Candidate, Outcome, PopulationSettings, Proposal, Score
from cachecraft.evolution.storage import Transaction


class Population:
    """An open population."""

    def __init__(self, folder: Path, settings: PopulationSettings | None = None) -> None:
        """Open the population of a run folder, or begin one.

        Args:
            folder: The run's folder.
            settings: What a new population is made for; None takes the folder's own.

        Raises:
            RunError: The folder has a population with other settings, or none and no settings are given.
        """
        self.folder = folder
        if settings is None and not (folder / "run.sqlite").is_file():
            raise RunError(f"{folder} holds no discovery run.")  # and looking for one makes none
        self._connection = storage.connect(folder)
        self.settings = self._agree(settings)
        self._reload()

    def _agree(self, settings: PopulationSettings | None) -> PopulationSettings:
        text = storage.read_note(self._connection, "settings")
        if text is None:
            if settings is None:
                raise RunError(f"{self.folder} holds no discovery run.")
            with self._write():
                storage.write_note(self._connection, "settings", json.dumps(asdict(settings)))
            return settings
        before = PopulationSettings(**json.loads(text))
        if settings not in (None, before):
            raise RunError(
                f"{self.folder} holds a population with {before}, not {settings}; name another folder with --run."
            )
        return before

    def _write(self) -> Transaction:
        return Transaction(self._connection, self.folder)

    def _reload(self) -> None:
        rows = self._connection.execute(
            "SELECT number, closed FROM generations ORDER BY number DESC LIMIT 1"
        ).fetchone()
        self.generation: int = 0 if rows is None else rows[0] + rows[1]
        self.is_open = rows is not None and not rows[1]
        self._all = storage.read_candidates(self._connection, before=self.generation)
        closed = {number: each for number, each in self._all.items() if each.generation < self.generation}
        self.candidates: Mapping[int, Candidate] = MappingProxyType(closed)
        self.archive: Archive = build_archive(closed.values(), storage.read_guests(self._connection))

    @property
    def best(self) -> Candidate | None:
        """The candidate of the highest standing among those that count."""
        return self.archive.best

    def told(self) -> list[Candidate]:
        """Every candidate that counts, in the order in which proposers are told of them."""
        return [self.candidates[number] for number in sorted(self.candidates)]

    @property
    def seconds(self) -> float:
        """Time that the run has taken so far, as `spend` was last told."""
        return float(storage.read_note(self._connection, "seconds") or 0)

    def spend(self, seconds: float) -> None:
        """Store how much time the run has taken, all its commands together."""
        with self._write():
            storage.write_note(self._connection, "seconds", repr(seconds))

    def candidate(self, number: int) -> Candidate:
        """A candidate as it stands, the open generation included; its fitness counts once that is closed."""
        return self._all[number]

    def knows(self, program: str) -> int | None:
        """Number of the first candidate with this canonical program, the open generation included."""
        row = self._connection.execute("SELECT MIN(number) FROM candidates WHERE program = ?", (program,)).fetchone()
        return None if row is None else row[0]

    def scores(self, number: int) -> list[Score]:
        """Everything that was measured of a candidate."""
        return storage.read_scores(self._connection, number)

    def stage_means(self) -> dict[int, dict[str, float]]:
        """For each candidate that is ok the mean of its scores in each stage."""
        return storage.read_stage_means(self._connection)

    def tasks(self) -> list[str]:
        """The tasks that candidates were measured on."""
        return storage.read_tasks(self._connection)

    def counts(self) -> dict[str, int]:
        """Candidates by state, the open generation included."""
        found = storage.count_states(self._connection)
        return {state: found.get(state, 0) for state in STATES}

    def pending(self) -> list[Candidate]:
        """New candidates of the open generation that have no outcome yet, in order."""
        return [each for each in self._all.values() if each.state == "seen"]

    def pending_again(self) -> list[Candidate]:
        """Candidates that the open generation scores again and that have no outcome of it yet, in order."""
        return [self._all[number] for number in storage.read_waiting(self._connection, self.generation)]

    def begin(self, proposals: Sequence[Proposal], interface: Interface, again: Iterable[int] = ()) -> list[Candidate]:
        """Begin a generation: store what was proposed and who is to be scored again, all or nothing.

        A program that was proposed before, in this batch or an earlier one, is stored as rejected.

        Args:
            proposals: The batch, in order; all of them say their slots, or none does.
            interface: What the candidates could edit.
            again: Numbers of candidates that count and are ok.

        Returns:
            The candidates that wait for an evaluation, as `pending`.

        Raises:
            RunError: A generation is open, a parent is unknown, or somebody is to be scored again who has no score.
        """
        if self.is_open:
            raise RunError(f"Generation {self.generation} is not finished; evaluate what is pending and close it.")
        repeated = sorted(set(again))
        good = {number for number, each in self.candidates.items() if each.state == "ok"}
        unknown = [number for each in proposals for number in each.parents if number not in self.candidates]
        if unknown or not good.issuperset(repeated):
            unknown += sorted(set(repeated) - good)
            raise RunError(f"Candidates {unknown} do not count yet and cannot be parents or be scored again.")
        first = max(self._all, default=0) + 1
        with self._write():
            text = json.dumps(interface.to_dict())
            self._connection.execute("INSERT INTO generations VALUES (?, 0, ?)", (self.generation, text))
            for place, each in enumerate(proposals):
                slot = place if each.slot is None else each.slot
                storage.insert(self._connection, self._candidate(first + place, slot, each, interface))
            rows = [(self.generation, number, "seen", "") for number in repeated]
            self._connection.executemany("INSERT INTO rescorings VALUES (?,?,?,?)", rows)
        self._reload()
        return self.pending()

    def _candidate(self, number: int, slot: int, proposal: Proposal, interface: Interface) -> Candidate:
        try:
            program, reason = program_id(proposal.source), ""
        except (SyntaxError, ValueError, RecursionError) as error:
            program, reason = "", f"The program is not valid Python: {error}."
        if program and (twin := self.knows(program)) is not None:
            reason = f"The same program as candidate {twin}."
        place = (number, self.generation, slot, slot % self.settings.islands)
        return Candidate.new(place, proposal, program, interface, reason)

    def attempt(self, number: int) -> int:
        """Note that an evaluation of a pending candidate begins; how many were begun by now."""
        self._pending(number)
        with self._write():
            row = self._connection.execute(
                "UPDATE candidates SET attempts = attempts + 1 WHERE number = ? RETURNING attempts", (number,)
            ).fetchone()
        return int(row[0])

    def note_behaviour(self, number: int, signature: str, behaviour: Behaviour) -> None:
        """Store what a pending candidate keeps on the fixed probe."""
        self._pending(number)
        with self._write():
            storage.write_behaviour(self._connection, number, signature, behaviour)
        self._refresh(number)

    def reject_twins(self) -> list[Candidate]:
        """Reject the pending candidates that keep on the probe exactly what an earlier candidate keeps.

        Call it when the whole batch has been probed and before anything dear is computed; then it does not matter in
        which order the probes came back. One that timed out or crashed stands in nobody's way.

        Returns:
            Those that were rejected.
        """
        first: dict[str, int] = {}
        for number, each in sorted(self._all.items()):
            repeated = each.state == "rejected" and each.stage in ("program", "behaviour")
            if each.signature and not repeated and each.state not in ("timeout", "crashed"):
                first.setdefault(each.signature, number)
        twins = [each for each in self.pending() if each.signature and first[each.signature] < each.number]
        for each in twins:
            reason = f"It keeps exactly what candidate {first[each.signature]} keeps."
            self.record(each.number, Outcome("rejected", reason, "behaviour"))
        return [self._all[each.number] for each in twins]

    def record(self, number: int, outcome: Outcome) -> None:
        """Store what became of a pending candidate; it counts when the generation is closed.

        Raises:
            RunError: The candidate is not pending (its outcome is stored already), or it is ok without a behaviour.
        """
        if self._pending(number).behaviour is None and outcome.state == "ok":
            raise RunError(f"Candidate {number} cannot be ok before its behaviour is known.")
        with self._write():
            storage.insert_outcome(self._connection, number, self.generation, outcome)
            self._connection.execute(
                "UPDATE candidates SET state = ?, reason = ?, stage = ?, seconds = seconds + ? WHERE number = ?",
                (outcome.state, outcome.reason, outcome.stage, outcome.seconds, number),
            )
        self._refresh(number)

    def record_again(self, number: int, outcome: Outcome) -> None:
        """Store a second or later scoring; a candidate that now fails is no longer ok once the generation is closed.

        Raises:
            RunError: The open generation does not score this candidate, or has done so.
        """
        if all(each.number != number for each in self.pending_again()):
            raise RunError(f"Candidate {number} is not waiting to be scored again.")
        with self._write():
            storage.insert_outcome(self._connection, number, self.generation, outcome)
            self._connection.execute(
                "UPDATE rescorings SET state = ?, reason = ? WHERE generation = ? AND candidate = ?",
                (outcome.state, outcome.reason, self.generation, number),
            )

    def close(self) -> list[Candidate]:
        """Close the open generation: its outcomes begin to count.

        Returns:
            The generation's candidates in order, for the proposers to be told.

        Raises:
            RunError: No generation is open, or somebody in it has no outcome.
        """
        waiting = [each.number for each in [*self.pending(), *self.pending_again()]]
        if not self.is_open or waiting:
            why = f"candidates {waiting} have no outcome" if self.is_open else "none is open"
            raise RunError(f"Generation {self.generation} cannot be closed: {why}.")
        closing = self.generation
        fresh = storage.read_candidates(self._connection, before=closing + 1)
        gains = [
            (self._gain(each), each.number) for each in fresh.values() if each.generation == closing and each.fitness
        ]
        with self._write():
            self._connection.executemany("UPDATE candidates SET gain = ? WHERE number = ?", gains)
            storage.fail_again(self._connection, closing)
            self._connection.execute("UPDATE generations SET closed = 1 WHERE number = ?", (closing,))
            self._migrate(closing)
        self._reload()
        return [each for each in self.told() if each.generation == closing]

    def _gain(self, candidate: Candidate) -> float | None:
        parents = [self.candidates[number].fitness for number in candidate.proposal.parents]
        before = max((fitness.mean for fitness in parents if fitness), default=self.archive.middle)
        return None if before is None or candidate.fitness is None else candidate.fitness.mean - before

    def _migrate(self, closing: int) -> None:
        """Each island's best also lives on the next one; part of the transaction that closes a generation."""
        islands = self.settings.islands
        if islands > 1 and (closing + 1) % self.settings.migrate_every == 0:
            guests = storage.read_guests(self._connection)
            archive = build_archive(storage.read_candidates(self._connection, before=closing + 1).values(), guests)
            leaders = [(closing, ranked[0].number, (i + 1) % islands) for i, ranked in archive.ranking.items()]
            self._connection.executemany("INSERT OR IGNORE INTO migrations VALUES (?,?,?)", leaders)

    def _pending(self, number: int) -> Candidate:
        found = self._all.get(number)
        if found is None or found.state != "seen":
            raise RunError(f"Candidate {number} is {found.state if found else 'unknown'}, not waiting for an outcome.")
        return found

    def _refresh(self, number: int) -> None:
        self._all |= storage.read_candidates(self._connection, before=self.generation, only=number)

    def close_database(self) -> None:
        """Close the file; what is stored stays."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close_database()
