"""The search by itself: formulas, groups, budgets as whole numbers, nothing measured twice, the same way again."""

import math

import pytest

from cachecraft.budgets.evolkv import EvolKV, Space, Vector, cache_score, objective
from cachecraft.budgets.settings import EvolKVSettings
from cachecraft.errors import BudgetError

SPACE, TARGET = Space(layers=6, heads=1, most=90), 20
SETTINGS = EvolKVSettings(group_size=4, iterations=6, seed=3)
WANTED = (5, 40, 10, 20, 30, 15)


def likeness(vector: Vector) -> float:
    """Falls with the distance from WANTED, from 1 to 0."""
    return math.exp(
        -sum((a - b) ** 2 for a, b in zip(vector.budgets, WANTED * (len(vector.budgets) // 6), strict=True)) / 800
    )


def run(settings: EvolKVSettings = SETTINGS, space: Space = SPACE) -> tuple[EvolKV, list[Vector]]:
    search, asked = EvolKV(space, TARGET, settings), []
    while not search.done:
        fresh = search.ask()
        asked += fresh
        search.tell({vector: likeness(vector) for vector in fresh})
    return search, asked


def test_the_objective_is_the_papers() -> None:
    assert cache_score(128, 128, 0.2) == 1
    assert cache_score(192, 128, 0.2) == 0.5 and cache_score(400, 128, 0.2) == 0
    assert cache_score(64, 128, 0.2) == pytest.approx(0.9)
    assert objective(0.5, 192, 128, SETTINGS) == pytest.approx(0.5 * (1 + 0.3 * 0.5))
    for wrong in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(BudgetError, match="from 0 to 1"):
            objective(wrong, 128, 128, SETTINGS)


def test_it_begins_uniform_goes_group_by_group_and_finds_something_better() -> None:
    search, asked = run()
    assert asked[0] == Vector((TARGET,) * 6)
    assert [list(group) for group in search.groups] == [[0, 1, 2, 3], [4, 5]]
    assert all(1 <= each <= 90 and isinstance(each, int) for vector in asked for each in vector.budgets)
    first_group = 6 * (4 + math.floor(3 * math.log(4)))
    assert all(vector.budgets[4:] == (TARGET, TARGET) for vector in asked[: first_group // 2])
    assert search.best is not None and likeness(search.best) > 1.2 * likeness(asked[0])
    assert len({vector.budgets[:4] for vector in asked[-10:]}) == 1, "the first group is frozen at the best found"


def test_no_vector_is_asked_for_twice_and_the_same_values_lead_the_same_way() -> None:
    (one, asked), (two, again) = run(), run()
    assert len(asked) == len(set(asked)) == len(one.known)
    assert asked == again and one.best == two.best
    assert run(EvolKVSettings(group_size=4, iterations=6, seed=4))[1] != asked


def test_heads_and_constants_are_searched_along() -> None:
    search, asked = run(EvolKVSettings(group_size=2, iterations=2), Space(layers=6, heads=2, most=90, factors=2))
    assert [len(group) for group in search.groups] == [4, 4, 4]
    assert {len(vector.budgets) for vector in asked} == {12} and {len(vector.factors) for vector in asked} == {2}
    assert all(abs(factor) <= 2 for vector in asked for factor in vector.factors)
    assert len({vector.factors for vector in asked}) > 3


def test_sizes_may_be_counted_over_the_group_alone() -> None:
    search, _ = run(EvolKVSettings(group_size=4, iterations=3, mean="group"))
    assert search.done and search.best is not None


def test_what_cannot_be_searched_is_refused() -> None:
    for target in (90, 200):
        with pytest.raises(BudgetError, match=f"target of {target} entries leaves nothing"):
            EvolKV(SPACE, target, SETTINGS)
    with pytest.raises(BudgetError, match="one layer only"):
        EvolKV(Space(1, 1, 90), TARGET, SETTINGS)
    with pytest.raises(BudgetError, match="least budget"):
        EvolKV(SPACE, 2, EvolKVSettings(minimum=4))
    search = EvolKV(SPACE, TARGET, SETTINGS)
    with pytest.raises(BudgetError, match="were not told"):
        search.tell({})
    for given in ({"weight": math.nan}, {"discount": -1.0}, {"sigma": 0.0}, {"group_size": 0}, {"mean": "some"}):
        with pytest.raises(BudgetError):
            EvolKVSettings(**given)
