"""Selectors keep exactly the budget, always the protected entries, and the more recent of equals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cachecraft.errors import PolicyError, UnknownNameError
from cachecraft.policy.protection import clip_protection
from cachecraft.policy.selectors import (
    Selector,
    chunks,
    keep_first,
    pages,
    parse_selector,
    token_order,
    tokens,
)

SELECTORS = {
    "tokens": tokens,
    "chunks": lambda s, k, p: chunks(s, k, p, size=3),
    "chunks per head": lambda s, k, p: chunks(s, k, p, size=4, per_head=True),
    "pages": lambda s, k, p: pages(s, k, p, size=5),
}


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    heads, length = draw(st.integers(1, 3)), draw(st.integers(1, 24))
    # Few distinct values, so that ties are the rule; among them the extremes of half precision.
    values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 65504.0, 3e38, -3e38])
    flat = draw(st.lists(values, min_size=heads * length, max_size=heads * length))
    keep = torch.tensor(draw(st.lists(st.integers(1, length), min_size=heads, max_size=heads)))
    first, last = draw(st.integers(0, length + 3)), draw(st.integers(0, length + 3))
    return torch.tensor(flat).view(heads, length), keep, clip_protection(first, last, keep, length)


@pytest.mark.parametrize("name", SELECTORS)
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_a_selection_has_exactly_the_budget_and_all_protected_entries(
    name: str, problem: tuple[Tensor, Tensor, Tensor]
) -> None:
    scores, keep, protected = problem
    mask = SELECTORS[name](scores, keep, protected)
    assert torch.equal(mask.sum(-1), keep)
    assert not (protected & ~mask).any()


@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_tokens_are_those_of_a_plain_sort(problem: tuple[Tensor, Tensor, Tensor]) -> None:
    scores, keep, protected = problem
    mask = tokens(scores, keep, protected)
    assert torch.equal(mask, keep_first(token_order(scores, protected), keep))
    for head in range(scores.shape[0]):
        order = sorted(
            range(scores.shape[1]),
            key=lambda j: (bool(protected[head, j]), float(scores[head, j]), j),
            reverse=True,
        )
        assert set(mask[head].nonzero().flatten().tolist()) == set(order[: int(keep[head])])


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20), st.data())
def test_protection_takes_the_first_entries_before_the_most_recent_and_fits_the_budget(
    first: int, last: int, length: int, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(1, length))
    mask = clip_protection(first, last, torch.tensor([keep, length]), length)
    sinks = min(first, keep, length)
    recent = min(last, keep - sinks)
    expected = [j < sinks or j >= length - recent for j in range(length)]
    assert mask[0].tolist() == expected
    assert mask[1].sum() == min(first + last, length)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_protection_survives_the_largest_score_of_every_precision(dtype: torch.dtype) -> None:
    scores = torch.full((1, 10), torch.finfo(dtype).max, dtype=dtype)
    scores[0, 0] = torch.finfo(dtype).min
    protected = torch.zeros(1, 10, dtype=torch.bool)
    protected[0, 0] = True
    assert tokens(scores, torch.tensor([3]), protected)[0].tolist() == [True] + [False] * 7 + [True] * 2


def test_chunks_are_ranked_by_their_mean_and_the_last_one_is_cut_by_token_score() -> None:
    scores = torch.tensor([[1.0, 1, 1, 5, 0, 9, 2, 3, 2, 8.0]])  # means 1, 14/3, 7/3, and 8 for the short last one
    mask = chunks(scores, torch.tensor([5]), size=3)
    assert mask[0].nonzero().flatten().tolist() == [3, 4, 5, 7, 9]


def test_chunks_are_alike_for_all_heads_unless_each_chooses() -> None:
    scores = torch.tensor([[9.0, 9, 0, 0, 0, 0], [0, 0, 0, 0, 5, 5]])
    keep = torch.tensor([2, 2])
    assert chunks(scores, keep, size=2).nonzero()[:, 1].tolist() == [0, 1, 0, 1]
    assert chunks(scores, keep, size=2, per_head=True).nonzero()[:, 1].tolist() == [0, 1, 4, 5]
    assert torch.equal(pages(scores, keep, size=2), chunks(scores, keep, size=2, per_head=True))


@pytest.mark.parametrize("text", ["tokens", "chunks:7", "pages:16"])
def test_a_selector_reads_what_it_writes(text: str) -> None:
    assert str(parse_selector(text)) == text
    assert parse_selector(str(parse_selector(text))) == parse_selector(text)


def test_selector_defaults_are_the_published_sizes() -> None:
    assert parse_selector("chunks") == Selector("chunks", 20)
    assert parse_selector("pages") == Selector("pages", 16)


def test_an_unknown_selector_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="chunks"):
        parse_selector("chunk")


@pytest.mark.parametrize("text", ["chunks:0", "pages:x", "tokens:3", "chunks:-1", "chunks:"])
def test_a_selector_size_must_be_a_whole_number(text: str) -> None:
    with pytest.raises(PolicyError, match="size of at least 1"):
        parse_selector(text)
