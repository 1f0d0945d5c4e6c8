"""Candidates are grouped by what they keep: every one once, alike together, and never at the price of much memory."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cachecraft.runtime.grouping import COPIES, groups

LAYERS, HEADS = 3, 2


def kept(entries: int, chosen: slice | Tensor) -> list[Tensor]:
    mask = torch.zeros(HEADS, entries, dtype=torch.bool)
    mask[:, chosen] = True
    return [mask] * LAYERS


@given(count=st.integers(1, 9), entries=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_every_candidate_is_in_one_group(count: int, entries: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    some = [[torch.rand(HEADS, entries, generator=generator) < share for _ in range(LAYERS)] for _ in range(count)]
    found = groups(some)
    assert sorted(index for group in found for index in group) == list(range(count))
    assert all(group == sorted(group) for group in found)


def test_candidates_that_keep_the_same_are_attended_together_and_others_apart() -> None:
    first, second = kept(4096, slice(0, 1024)), kept(4096, slice(3072, 4096))
    assert groups([first, second] * 8) == [list(range(0, 16, 2)), list(range(1, 16, 2))]


def test_a_short_context_is_not_worth_more_than_one_call() -> None:
    assert len(groups([kept(64, slice(0, 32)), kept(64, slice(32, 64))])) == 1


def test_the_groups_of_candidates_that_share_nothing_hold_a_bounded_number_of_entries() -> None:
    entries = 65536
    some = [
        kept(entries, torch.randperm(entries, generator=torch.Generator().manual_seed(i))[: entries // 2])
        for i in range(12)
    ]
    unions = [torch.stack([some[index][0] for index in group]).any(dim=0) for group in groups(some)]
    assert sum(int(union.sum(dim=-1).max()) for union in unions) <= 1.05 * COPIES * entries
