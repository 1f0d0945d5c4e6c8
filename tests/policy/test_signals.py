"""The parts that scores are made of: laws that hold for every input, and the edges that formulas leave open."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.errors import FeatureError
from cachecraft.policy.signals import (
    cosine_to_mean,
    main_direction,
    neighbour_mean,
    sketched_leverage,
    value_key_ratio,
    z_scores,
)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 40), st.integers(1, 50), st.booleans())
def test_pooling_of_equal_scores_is_flat_unless_zeros_are_outside(tokens: int, kernel: int, zeros: bool) -> None:
    found = neighbour_mean(torch.full((2, tokens), -3.0), kernel, zeros_outside=zeros)
    assert found.shape == (2, tokens)
    if not zeros:
        assert torch.allclose(found, torch.full((2, tokens), -3.0), atol=1e-5)


def test_published_pooling_divides_by_the_kernel_at_the_ends_too() -> None:
    found = neighbour_mean(torch.tensor([[5.0, 10.0, 0.0]]), 5, zeros_outside=True)
    assert torch.allclose(found, torch.full((1, 3), 3.0))


@given(st.integers(2, 30), st.floats(-1e3, 1e3), st.floats(0.1, 1e3))
def test_standard_scores_forget_scale_and_place(tokens: int, place: float, scale: float) -> None:
    x = drawn(tokens, 2, tokens)
    assert torch.allclose(z_scores(x * scale + place), z_scores(x), atol=2e-2)


def test_one_score_and_equal_scores_are_standardised_to_zero() -> None:
    assert torch.equal(z_scores(torch.tensor([[7.0]])), torch.zeros(1, 1))
    assert torch.equal(z_scores(torch.full((2, 3), 7.0)), torch.zeros(2, 3))


@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_leverages_lie_between_0_and_1_and_sum_to_at_most_the_rank(tokens: int) -> None:
    found = sketched_leverage(drawn(1, 2, tokens, 16), 8, 1e-3, torch.Generator().manual_seed(0))
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-6
    assert (found.sum(-1) <= min(8, tokens - 1) + 1e-4).all()


def test_leverage_exists_for_huge_rows_of_low_rank() -> None:
    rows = drawn(2, 1, 3, 64) * 1e5
    found = sketched_leverage(rows, 48, 0.01, torch.Generator().manual_seed(0))
    assert torch.allclose(found.sum(), torch.tensor(2.0), atol=1e-3)


@given(st.integers(0, 20))
def test_the_main_direction_is_that_of_the_singular_values(seed: int) -> None:
    rows = drawn(seed, 2, 30, 6) + 1
    found = main_direction(rows)
    for head in range(2):
        expected = torch.linalg.svd(rows[head]).Vh[0]
        expected = expected * torch.sign((rows[head] @ expected).mean())
        assert torch.allclose(found[head], expected, atol=1e-3)


def test_zero_vectors_have_no_direction_and_a_finite_ratio() -> None:
    zeros = torch.zeros(1, 3, 4)
    assert torch.equal(cosine_to_mean(zeros), torch.zeros(1, 3))
    assert main_direction(zeros).isfinite().all()
    assert value_key_ratio(zeros, torch.ones(1, 3, 4)).isfinite().all()


def test_a_kernel_or_a_sketch_of_nothing_is_refused() -> None:
    with pytest.raises(FeatureError, match="kernel of 0"):
        neighbour_mean(torch.zeros(1, 3), 0, zeros_outside=True)
    with pytest.raises(FeatureError, match="sketch of 0"):
        sketched_leverage(torch.zeros(1, 3, 4), 0, 0.1, torch.Generator())
