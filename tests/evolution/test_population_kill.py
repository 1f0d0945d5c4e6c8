"""kill -9 at any moment: the resumed run becomes, candidate for candidate, the run that was never killed."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from tests.forked import fork

from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.mutate import MutateProposer, seed_proposals
from cachecraft.evolution.records import Fitness, Outcome, PopulationSettings

pytestmark = pytest.mark.system


def drawn(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def search(folder: Path, pause: float) -> None:
    """A search whose evaluations take so many seconds and are made up from the program's hash."""
    interface = Interface("scorer")
    with Population(folder, PopulationSettings(seed=5, islands=2, migrate_every=2)) as population:
        proposer = MutateProposer(interface)
        for each in population.told():
            proposer.tell(each)
        while population.generation < 5:
            if not population.is_open:
                batch = (
                    proposer.ask(population, 4)
                    if population.generation
                    else seed_proposals(interface, 5, grammar_programs=0)[:8]
                )
                again = [each.number for each in population.archive.due(2, limit=40)]
                population.begin(batch, interface, again)
            for each in population.pending():
                if each.behaviour is None:
                    own = each.program
                    population.note_behaviour(each.number, own, Behaviour(drawn(own + "r"), drawn(own + "a"), "O(T)"))
            population.reject_twins()
            for each in population.pending():
                population.attempt(each.number)
                time.sleep(pause)
                if drawn(each.program + "?") < 0.2:
                    population.record(each.number, Outcome("rejected", "Bad luck.", "quick"))
                else:
                    population.record(each.number, Outcome("ok", "", "full", Fitness(drawn(each.program), 8, 0.3)))
            for each in population.pending_again():
                time.sleep(pause)
                fitness = Fitness(drawn(each.program + str(population.generation)), 8, 0.3)
                population.record_again(each.number, Outcome("ok", "", "full", fitness))
            for each in population.close():
                proposer.tell(each)


# Everything but the count of attempts, which a kill may raise by one.
COMPARED = (
    "SELECT number, generation, slot, island, source, operator, note, state, reason, gain FROM candidates ORDER BY 1",
    "SELECT * FROM candidate_parents ORDER BY child, place",
    "SELECT * FROM candidate_fitness ORDER BY candidate, generation",
    "SELECT * FROM rescorings ORDER BY generation, candidate",
    "SELECT * FROM migrations ORDER BY candidate, island",
    "SELECT number, closed FROM generations ORDER BY number",
)


def contents(folder: Path) -> list[list[tuple[object, ...]]]:
    connection = sqlite3.connect(folder / "run.sqlite")
    try:
        return [connection.execute(query).fetchall() for query in COMPARED]
    finally:
        connection.close()


def finished(folder: Path) -> int:
    """How many evaluations are stored so far."""
    if not (folder / "run.sqlite").exists():
        return 0
    connection = sqlite3.connect(folder / "run.sqlite", timeout=10)
    try:
        new = connection.execute("SELECT COUNT(*) FROM candidates WHERE state NOT IN ('seen')").fetchone()[0]
        return int(new) + int(connection.execute("SELECT COUNT(*) FROM candidate_fitness").fetchone()[0])
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0
    finally:
        connection.close()


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_a_run_killed_again_and_again_is_the_run_that_was_never_killed(tmp_path: Path) -> None:
    log, whole, killed = tmp_path / "log", tmp_path / "whole", tmp_path / "killed"
    search(whole, 0.0)
    for goal in (7, 19):
        process = fork(lambda: search(killed, 0.02), log)
        deadline = time.monotonic() + 120
        while finished(killed) < goal and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert finished(killed) >= goal, log.read_text()
    search(killed, 0.0)
    found = contents(killed)
    assert found == contents(whole)
    assert found[-1] == [(number, 1) for number in range(5)]
    assert len(found[0]) == 8 + 4 * 4
