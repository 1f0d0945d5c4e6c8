"""The archive's laws: a pure function of the candidates, whose best is never lost and where luck does not rule."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.errors import RunError
from cachecraft.evolution.archive import build_archive
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.records import Candidate, Fitness, Outcome, Proposal, Score, checked_number, pooled


def candidate(
    number: int,
    mean: float,
    *,
    items: int = 8,
    recency: float = 0.5,
    island: int = 0,
    state: str = "ok",
    spread: float = 0.3,
) -> Candidate:
    return Candidate(
        number=number,
        generation=0,
        slot=number - 1,
        island=island,
        proposal=Proposal(f"program {number}"),
        program=str(number),
        interface=Interface(),
        state=state,  # type: ignore[arg-type]
        reason="",
        stage="full",
        attempts=1,
        signature=str(number),
        behaviour=Behaviour(recency, 0.4, "O(T)"),
        fitness=Fitness(mean, items, spread) if state == "ok" else None,
        gain=None,
    )


MEANS = st.lists(
    st.tuples(st.floats(-2, 2), st.sampled_from((0.1, 0.5, 0.9)), st.integers(0, 2), st.integers(1, 40)), max_size=12
)


def made(rows: list[tuple[float, float, int, int]]) -> list[Candidate]:
    return [
        candidate(number, mean, recency=recency, island=island, items=items)
        for number, (mean, recency, island, items) in enumerate(rows, start=1)
    ]


@given(MEANS, st.randoms(use_true_random=False))
def test_the_order_of_candidates_does_not_matter(
    rows: list[tuple[float, float, int, int]], draw: random.Random
) -> None:
    ordered = made(rows)
    shuffled = list(ordered)
    draw.shuffle(shuffled)
    assert build_archive(ordered) == build_archive(shuffled)


@given(MEANS)
def test_the_best_is_an_elite_and_no_candidate_of_its_cell_stands_higher(
    rows: list[tuple[float, float, int, int]],
) -> None:
    every = made(rows)
    archive = build_archive(every)
    if not every:
        assert archive.best is None
        assert archive.pick(random.Random(0), 0) is None
        return
    highest = max(archive.standing.values())
    assert archive.best is not None
    assert archive.standing[archive.best.number] == highest
    assert archive.best in archive.elites.values()
    for each in every:
        assert each.behaviour is not None
        elite = archive.elites[each.island, each.behaviour.cell]
        assert archive.standing[each.number] <= archive.standing[elite.number]


@given(MEANS, st.floats(-2, 2))
def test_another_candidate_never_makes_the_best_worse(rows: list[tuple[float, float, int, int]], mean: float) -> None:
    same_items = [(m, r, i, 8) for m, r, i, _ in rows]
    before, after = build_archive(made(same_items)), build_archive(made([*same_items, (mean, 0.5, 0, 8)]))
    if before.best is not None:
        assert after.best is not None and after.best.fitness is not None and before.best.fitness is not None
        assert after.best.fitness.mean >= before.best.fitness.mean


def test_failures_are_no_candidates_whatever_they_were() -> None:
    archive = build_archive([candidate(1, 0.2), candidate(2, 9.0, state="suspect"), candidate(3, 9.0, state="crashed")])
    assert archive.best is not None and archive.best.number == 1
    assert list(archive.standing) == [1]


def test_few_items_are_not_enough_to_push_out_a_well_known_elite_by_a_little() -> None:
    known, lucky = candidate(1, 0.50, items=64), candidate(2, 0.52, items=8)
    assert build_archive([known, lucky]).best == known
    assert build_archive([known, candidate(3, 0.60, items=8)]).best is not None
    assert build_archive([known, candidate(3, 0.70, items=8)]).best == candidate(3, 0.70, items=8)


def test_with_equally_many_items_the_mean_alone_decides_whatever_the_spread() -> None:
    steady, jumpy = candidate(1, 0.50, spread=0.01), candidate(2, 0.51, spread=0.9)
    assert build_archive([steady, jumpy]).best == jumpy


def test_who_lost_a_cell_to_luck_comes_back_when_the_luck_is_found_out() -> None:
    honest = candidate(1, 0.5)
    assert build_archive([honest, candidate(2, 0.6)]).best == candidate(2, 0.6)
    assert build_archive([honest, candidate(2, 0.4, items=16)]).best == honest


def test_due_are_elites_and_those_that_only_doubt_keeps_down() -> None:
    elite, doubted, worse = candidate(1, 0.50, items=32), candidate(2, 0.52, items=8), candidate(3, 0.1, items=8)
    elsewhere = candidate(4, 0.3, recency=0.9)
    archive = build_archive([elite, doubted, worse, elsewhere])
    assert archive.best == elite
    assert [each.number for each in archive.due(9, limit=64)] == [1, 2, 4]
    assert [each.number for each in archive.due(9, limit=32)] == [2, 4]
    assert [each.number for each in archive.due(1, limit=64)] == [1]


def test_guests_live_on_both_islands() -> None:
    strong, weak = candidate(1, 0.9), candidate(2, 0.1, island=1)
    archive = build_archive([strong, weak], guests=[(1, 1)])
    assert [each.number for each in archive.ranking[1]] == [1, 2]
    assert [each.number for each in archive.ranking[0]] == [1]
    assert archive.island(1) == [strong]


def test_parents_are_the_best_often_and_everyone_at_times() -> None:
    archive = build_archive([candidate(n, n / 20, recency=0.1 if n % 2 else 0.9) for n in range(1, 11)])
    draw = random.Random(0)
    counts = [0] * 11
    for _ in range(3000):
        picked = archive.pick(draw, 0)
        assert picked is not None
        counts[picked.number] += 1
    assert min(counts[1:]) > 0
    assert counts[10] == max(counts) and counts[10] > 900
    assert counts[9] > counts[7], "the other cell's elite is drawn more often than a better-placed non-elite"
    assert all(archive.pick(draw, 0, other_than=archive.best) != archive.best for _ in range(200))


@pytest.mark.parametrize("value", [True, "0.5", 1, None, float("nan"), float("inf"), -float("inf")])
def test_only_a_finite_float_is_a_fitness(value: object) -> None:
    with pytest.raises(RunError, match="no finite float"):
        checked_number(value, "fitness")
    with pytest.raises(RunError, match="no finite float"):
        Fitness(value, 8, 0.1)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="no finite float"):
        Score("full", "m", "t", "0.5", value, 8)  # type: ignore[arg-type]


def test_an_outcome_is_a_number_or_a_reason_and_never_both() -> None:
    with pytest.raises(RunError, match="cannot have the fitness"):
        Outcome("ok")
    with pytest.raises(RunError, match="cannot have the fitness"):
        Outcome("crashed", "It died.", fitness=Fitness(0.5, 8, 0.1))
    with pytest.raises(RunError, match="needs a reason"):
        Outcome("timeout")
    with pytest.raises(RunError, match="no outcome"):
        Outcome("seen", "Not yet.")
    with pytest.raises(RunError, match="means nothing"):
        Fitness(0.5, 0, 0.1)


def test_scorings_are_pooled_over_their_items() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 0.5]
    parts = [Fitness(0.5, 2, 0.5), Fitness(0.5, 3, (1 / 6) ** 0.5)]
    found = pooled(parts)
    assert found.items == 5
    assert found.mean == pytest.approx(sum(values) / 5)
    assert found.spread == pytest.approx((sum((v - 0.5) ** 2 for v in values) / 5) ** 0.5)
