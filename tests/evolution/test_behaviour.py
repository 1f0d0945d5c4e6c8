"""Behaviour: what the numbers mean, and a grid whose cells are fixed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.errors import RunError
from cachecraft.evolution.behaviour import CELLS, COSTS, Behaviour, observe


def kept(*places: int, tokens: int = 11) -> torch.Tensor:
    return torch.isin(torch.arange(tokens), torch.tensor(places))


def test_recency_is_the_mean_place_of_what_is_kept() -> None:
    first, last, middle = (torch.stack((kept(*p), kept(*p))) for p in ((0,), (10,), (0, 5, 10)))
    assert observe([[first]], "O(T)").recency == 0
    assert observe([[last]], "O(T)").recency == 1
    assert observe([[middle]], "O(T)").recency == pytest.approx(0.5)
    assert observe([[first], [last]], "O(T)").recency == pytest.approx(0.5)


def test_agreement_is_the_share_that_another_head_keeps_too() -> None:
    same = torch.stack((kept(1, 2), kept(1, 2)))
    half = torch.stack((kept(1, 2), kept(2, 3)))
    apart = torch.stack((kept(1, 2), kept(3, 4), kept(5, 6)))
    unequal = torch.stack((kept(1, 2, 3, 4), kept(1, 9)))
    found = [observe([[each]], "O(T)").agreement for each in (same, half, apart, unequal)]
    assert found == pytest.approx([1.0, 0.5, 0.0, 0.5])


def test_one_head_agrees_with_itself_and_one_entry_has_a_place() -> None:
    assert observe([[kept(1, 2)[None]]], "O(T)").agreement == 1
    assert observe([[torch.ones(2, 1, dtype=torch.bool)]], "O(T)").recency == 0


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(COSTS))
def test_every_behaviour_has_one_of_at_most_thirty_cells(recency: float, agreement: float, cost: str) -> None:
    behaviour = Behaviour(recency, agreement, cost)
    assert 0 <= behaviour.cell < CELLS <= 30
    assert behaviour.label.endswith(cost)


def test_the_corners_of_the_grid_are_different_cells() -> None:
    cells = {Behaviour(r, a, c).cell for r in (0.1, 0.49, 0.9) for a in (0.1, 0.4, 0.9) for c in COSTS}
    assert len(cells) == CELLS == 27


@pytest.mark.parametrize(
    ("recency", "agreement", "cost"),
    [(-0.1, 0.5, "O(T)"), (0.5, 1.1, "O(T)"), (float("nan"), 0.5, "O(T)"), (0.5, 0.5, "O(1)")],
)
def test_what_has_no_cell_is_refused(recency: float, agreement: float, cost: str) -> None:
    with pytest.raises(RunError, match="behaviour cannot have"):
        Behaviour(recency, agreement, cost)


def test_a_behaviour_needs_a_probe() -> None:
    with pytest.raises(RunError, match="at least one probe"):
        observe([], "O(T)")
