"""The population: generations that are begun, filled and closed; what counts when; nothing lost, nothing twice."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from cachecraft.errors import RunError
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Candidate, Cost, Fitness, Outcome, PopulationSettings, Proposal, Score

INTERFACE = Interface("scorer", frozenset({"keys", "values"}))


def program(number: float) -> str:
    return f"def score_tokens(f):\n    return {number} * f.keys.norm(dim=-1)\n"


def proposals(*numbers: float, parents: tuple[int, ...] = ()) -> list[Proposal]:
    return [Proposal(program(number), parents, "seed", f"Weight {number}") for number in numbers]


def ok(mean: float, items: int = 8) -> Outcome:
    scores = (Score("full", "m", "ruler:vt", "0.75", mean, items),)
    return Outcome("ok", "", "full", Fitness(mean, items, 0.3), scores, 1.5)


def fill(population: Population, outcomes: dict[int, Outcome], order: list[int] | None = None) -> list[Candidate]:
    """Give every pending candidate an outcome, in any order, and close the generation."""
    for number in order or sorted(outcomes):
        population.note_behaviour(number, f"kept {number}", Behaviour(number % 7 / 7, 0.4, "O(T)"))
        population.record(number, outcomes[number])
    return population.close()


def state(population: Population) -> tuple[object, ...]:
    return population.generation, population.is_open, dict(population.candidates), population.archive


def test_what_is_stored_is_what_was_proposed_and_found(tmp_path: Path) -> None:
    proposal = Proposal(program(1), (), "add term", "Added a norm.", "llm", Cost(100, 20, None))
    with Population(tmp_path, PopulationSettings(seed=3)) as population:
        (waiting,) = population.begin([proposal], INTERFACE)
        assert waiting.name == "c0001"
        assert population.attempt(1) == 1
        fill(population, {1: ok(0.25)})
    with Population(tmp_path) as again:
        found = again.candidates[1]
        assert found.proposal == proposal
        assert (found.interface, found.state, found.stage, found.attempts) == (INTERFACE, "ok", "full", 1)
        assert found.fitness == Fitness(0.25, 8, 0.3)
        assert again.scores(1) == [Score("full", "m", "ruler:vt", "0.75", 0.25, 8)]
        assert again.settings == PopulationSettings(seed=3)


def test_outcomes_count_only_when_their_generation_is_closed(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        population.begin(proposals(1, 2), INTERFACE)
        population.note_behaviour(1, "a", Behaviour(0.5, 0.5, "O(T)"))
        population.record(1, ok(0.9))
        assert population.best is None
        assert population.counts()["ok"] == 1
        with pytest.raises(RunError, match=r"candidates \[2\] have no outcome"):
            population.close()
        population.record(2, Outcome("crashed", "It raised.", "contract"))
        assert [each.number for each in population.close()] == [1, 2]
        assert population.best is not None and population.best.number == 1


def test_the_order_in_which_outcomes_come_in_changes_nothing(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 1), ("b", 2)):
        with Population(tmp_path / name, PopulationSettings(islands=2, migrate_every=1)) as population:
            for generation in range(4):
                base = 5 * generation
                parents = (base,) if generation else ()
                population.begin(proposals(*(base + n for n in range(1, 6)), parents=parents), INTERFACE)
                order = list(range(base + 1, base + 6))
                random.Random(seed).shuffle(order)
                outcomes = {n: ok((n * 7 % 11) / 11) for n in order}
                outcomes[base + 3] = Outcome("timeout", "Too slow.", "quick")
                fill(population, outcomes, order)
            found.append((population.told(), population.archive))
    assert found[0] == found[1]


def test_a_reopened_population_is_the_one_that_was_left(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings(islands=2, migrate_every=2)) as population:
        for generation in range(3):
            population.begin(proposals(10 * generation + 1, 10 * generation + 2), INTERFACE)
            fill(population, {each.number: ok(each.number / 10) for each in population.pending()})
        population.begin(proposals(91, 92, parents=(1,)), INTERFACE, again=[1, 3])
        population.record(7, Outcome("rejected", "Not allowed.", "gate"))
        before = state(population)
        waiting = [each.number for each in population.pending()], [each.number for each in population.pending_again()]
    with Population(tmp_path) as again:
        assert state(again) == before
        assert ([e.number for e in again.pending()], [e.number for e in again.pending_again()]) == waiting
        assert waiting == ([8], [1, 3])


def test_nothing_is_counted_twice(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        population.begin(proposals(1, 2), INTERFACE)
        population.note_behaviour(1, "a", Behaviour(0.5, 0.5, "O(T)"))
        population.record(1, ok(0.5))
        with pytest.raises(RunError, match="Candidate 1 is ok, not waiting"):
            population.record(1, ok(0.9))
        with pytest.raises(RunError, match="Candidate 9 is unknown"):
            population.record(9, ok(0.9))
        with pytest.raises(RunError, match="before its behaviour is known"):
            population.record(2, ok(0.5))
        with pytest.raises(RunError, match="not waiting to be scored again"):
            population.record_again(1, ok(0.9))
        with pytest.raises(RunError, match="Generation 0 is not finished"):
            population.begin(proposals(3), INTERFACE)
        assert len(population.scores(1)) == 1


def test_the_same_program_is_rejected_before_it_costs_anything(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        twin = Proposal("# again\n" + program(1).replace("f", "f"), (), "seed", "")
        waiting = population.begin([*proposals(1, 2), twin, Proposal("def score_tokens(f", (), "seed", "")], INTERFACE)
        assert [each.number for each in waiting] == [1, 2]
        fill(population, {1: ok(0.5), 2: ok(0.6)})
        assert population.candidates[3].reason == "The same program as candidate 1."
        assert population.candidates[4].state == "rejected"
        assert "not valid Python" in population.candidates[4].reason
        assert population.begin(proposals(2), INTERFACE) == []
        population.close()
        assert population.candidates[5].reason == "The same program as candidate 2."
        assert population.knows(population.candidates[1].program) == 1
        assert population.knows("unheard of") is None


def test_the_same_behaviour_is_rejected_whichever_probe_came_back_first(tmp_path: Path) -> None:
    for order in ([1, 2, 3], [3, 2, 1]):
        with Population(tmp_path / str(order[0]), PopulationSettings()) as population:
            population.begin(proposals(1, 2, 3), INTERFACE)
            for number in order:
                population.note_behaviour(number, "other" if number == 2 else "same", Behaviour(0.5, 0.5, "O(T)"))
            assert [each.number for each in population.reject_twins()] == [3]
            assert [each.number for each in population.pending()] == [1, 2]
            fill(population, {1: ok(0.1), 2: ok(0.2)})
            assert population.candidates[3].reason == "It keeps exactly what candidate 1 keeps."
            assert population.reject_twins() == []


def test_an_elite_that_is_scored_again_has_the_mean_of_all_its_items(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        population.begin(proposals(1, 2), INTERFACE)
        population.note_behaviour(1, "a", Behaviour(0.5, 0.5, "O(T)"))
        population.note_behaviour(2, "b", Behaviour(0.5, 0.5, "O(T)"))
        population.record(1, ok(0.80))
        population.record(2, ok(0.70))
        population.close()
        assert population.best is not None and population.best.number == 1
        population.begin([], INTERFACE, again=[each.number for each in population.archive.due(4, limit=64)])
        population.record_again(1, ok(0.40, items=24))
        assert population.candidates[1].fitness == Fitness(0.80, 8, 0.3), "not before the generation is closed"
        population.close()
        fitness = population.candidates[1].fitness
        assert fitness is not None and (fitness.items, fitness.mean) == (32, pytest.approx(0.5))
        assert population.best.number == 2, "the one that was only second by luck"
        assert len(population.scores(1)) == 2


def test_a_candidate_that_fails_on_fresh_items_is_no_longer_ok(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        population.begin(proposals(1, 2), INTERFACE)
        fill(population, {1: ok(0.8), 2: ok(0.7)})
        population.begin([], INTERFACE, again=[1])
        population.record_again(1, Outcome("suspect", "It does well on the old items only.", "full"))
        with pytest.raises(RunError, match="not waiting to be scored again"):
            population.record_again(1, ok(0.5))
        population.close()
        assert population.candidates[1].state == "suspect"
        assert population.best is not None and population.best.number == 2


def test_gains_are_against_the_better_parent_or_the_archive(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        population.begin(proposals(1, 2), INTERFACE)
        first = fill(population, {1: ok(0.2), 2: ok(0.4)})
        assert [each.gain for each in first] == [None, None], "there was nothing to compare with"
        population.begin([*proposals(3, parents=(1, 2)), *proposals(4), *proposals(5, parents=(1,))], INTERFACE)
        second = fill(population, {3: ok(0.5), 4: ok(0.5), 5: Outcome("crashed", "It raised.", "quick")})
        assert [each.gain for each in second] == [pytest.approx(0.1), pytest.approx(0.1), None]


def test_each_islands_best_visits_the_next_island(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings(islands=2, migrate_every=2)) as population:
        population.begin(proposals(1, 2), INTERFACE)
        fill(population, {1: ok(0.9), 2: ok(0.1)})
        assert [each.number for each in population.archive.ranking[1]] == [2]
        population.begin(proposals(3, 4), INTERFACE)
        fill(population, {3: ok(0.5), 4: ok(0.2)})
        assert [each.number for each in population.archive.ranking[1]] == [1, 4, 2]
        assert [each.number for each in population.archive.ranking[0]] == [1, 3, 4]


def test_parents_and_the_rescored_must_count(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        with pytest.raises(RunError, match=r"Candidates \[1\] do not count yet"):
            population.begin(proposals(1, parents=(1,)), INTERFACE)
        population.begin(proposals(1), INTERFACE)
        population.record(1, Outcome("rejected", "Not allowed.", "gate"))
        population.close()
        with pytest.raises(RunError, match=r"Candidates \[1\] do not count yet"):
            population.begin([], INTERFACE, again=[1])
        with pytest.raises(RunError, match="none is open"):
            population.close()


def test_a_folder_with_other_settings_or_none_is_refused(tmp_path: Path) -> None:
    Population(tmp_path, PopulationSettings(seed=1)).close_database()
    with pytest.raises(RunError, match="seed=1"):
        Population(tmp_path, PopulationSettings(seed=2))
    with pytest.raises(RunError, match="holds no discovery run"):
        Population(tmp_path / "nothing")
    sqlite3.connect(tmp_path / "other.sqlite").close()
    (tmp_path / "empty").mkdir()
    sqlite3.connect(tmp_path / "empty" / "run.sqlite").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(RunError, match="holds no discovery run"):
        Population(tmp_path / "empty")


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be opened"):
        Population(tmp_path / "file", PopulationSettings())
    with pytest.raises(RunError, match="mean nothing"):
        PopulationSettings(islands=0)
