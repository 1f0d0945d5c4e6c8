"""kill -9 at any moment: the resumed run becomes, candidate for candidate, the run that was never killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

DRIVER = '''
"""A search whose evaluations are made up from the program's hash; argv: folder, seconds per evaluation."""
import hashlib, sys, time
from pathlib import Path
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.mutate import MutateProposer, seed_proposals
from cachecraft.evolution.records import Fitness, Outcome, PopulationSettings

def drawn(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32

folder, pause = Path(sys.argv[1]), float(sys.argv[2])
interface = Interface("scorer")
with Population(folder, PopulationSettings(seed=5, islands=2, migrate_every=2)) as population:
    proposer = MutateProposer(interface)
    for each in population.told():
        proposer.tell(each)
    while population.generation < 5:
        if not population.is_open:
            batch = proposer.ask(population, 4) if population.generation else seed_proposals(interface, 5, 0)[:8]
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
'''
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


def start(folder: Path, pause: float, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as told:
        return subprocess.Popen([sys.executable, "-c", DRIVER, str(folder), str(pause)], stdout=told, stderr=told)


def test_a_run_killed_again_and_again_is_the_run_that_was_never_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    whole = start(tmp_path / "whole", 0.0, log)
    killed = tmp_path / "killed"
    for goal in (7, 19):
        process = start(killed, 0.05, log)
        deadline = time.monotonic() + 120
        while finished(killed) < goal and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, log.read_text()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert finished(killed) >= goal, log.read_text()
    assert start(killed, 0.0, log).wait(timeout=120) == 0, log.read_text()
    assert whole.wait(timeout=120) == 0, log.read_text()
    found = contents(killed)
    assert found == contents(tmp_path / "whole")
    assert found[-1] == [(number, 1) for number in range(5)]
    assert len(found[0]) == 8 + 4 * 4
