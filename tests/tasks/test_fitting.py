"""How much haystack fits: always the largest number of units, found in few steps, whatever the counts are."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import TaskError
from cachecraft.tasks import Item, render
from cachecraft.tasks.fitting import fit_item, largest_fitting


@given(
    costs=st.lists(st.integers(0, 60), min_size=1, max_size=300),
    head=st.integers(0, 50),
    limit=st.integers(0, 4000),
    estimated=st.booleans(),
)
def test_the_result_fits_and_one_more_unit_does_not(costs: list[int], head: int, limit: int, estimated: bool) -> None:
    totals = list(accumulate(costs, initial=head))
    limit += head

    def added(low: int, high: int) -> int:
        return totals[high] - totals[low] + (high % 3 - 1)  # off by one here and there, as estimates are

    found = largest_fitting(totals.__getitem__, limit, most=len(costs), added=added if estimated else None)
    assert totals[found] <= limit
    assert found == len(costs) or totals[found + 1] > limit


@given(
    wobble=st.lists(st.integers(-8, 8), min_size=50, max_size=50),
    limit=st.integers(20, 400),
    slope=st.integers(1, 9),
)
def test_counts_that_go_back_a_little_still_end_at_a_boundary(wobble: list[int], limit: int, slope: int) -> None:
    def measure(units: int) -> int:
        return slope * units + (wobble[units % 50] if units else 0)

    found = largest_fitting(measure, limit)
    assert measure(found) <= limit < measure(found + 1)


def test_even_units_take_a_handful_of_measurements() -> None:
    calls: list[int] = []

    def measure(units: int) -> int:
        calls.append(units)
        return 40 + 27 * units

    assert largest_fitting(measure, 4096) == (4096 - 40) // 27
    assert len(calls) <= 6


def test_the_worst_counts_end_in_a_few_dozen_measurements() -> None:
    calls: list[int] = []

    def measure(units: int) -> int:
        calls.append(units)
        return min(units, 5) + (10**6 if units > 9000 else 0)

    assert largest_fitting(measure, 4096) == 9000
    assert len(calls) < 40


def test_a_tokenizer_that_swallows_everything_is_refused_instead_of_searched_for_ever() -> None:
    with pytest.raises(TaskError, match="no length can be reached"):
        largest_fitting(lambda units: 1, 100)


def test_a_start_above_the_limit_is_refused() -> None:
    with pytest.raises(TaskError, match="more than the 10 allowed"):
        largest_fitting(lambda units: 11, 10)


@pytest.mark.parametrize("length", [120, 121, 122, 500, 1501])
def test_a_fitted_item_of_uneven_words_is_the_longest_that_fits(length: int, with_bos: PreTrainedTokenizerFast) -> None:
    rng = Random(length)
    words = ["".join(rng.choices("abcxyz.", k=rng.choice((1, 2, 5, 40)))) for _ in range(2000)]

    def draft(units: int) -> Item:
        return Item("t", 0, "test", length, 0, " ".join(words[:units]), "Why?", " Because", ("x",), 20)

    def total(item: Item) -> int:
        return len(render(with_bos, item).ids) + item.max_new_tokens

    def between(low: int, high: int) -> str:
        return "".join(f" {word}" for word in words[low:high])

    for item in (fit_item(draft, with_bos), fit_item(draft, with_bos, between=between)):
        assert total(item) <= length < total(draft(len(item.context.split(" ")) + 1))
