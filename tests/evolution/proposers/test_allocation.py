"""The allocations that `mutate` writes: exact totals within the limits, whatever the scores."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.evolution.interface import Interface
from cachecraft.evolution.proposers.choices import allocate_otherwise
from cachecraft.evolution.proposers.form import read_form
from cachecraft.evolution.proposers.grammar import Grammar
from cachecraft.evolution.proposers.writing import write_form

PARENT = "import torch\n\n\ndef score_tokens(f):\n    return torch.ones(f.kv_heads, f.tokens)\n"


def allocations() -> list[Callable[..., torch.Tensor]]:
    """Every allocation that the operator writes, as a function."""
    sources = set()
    for seed in range(40):
        change = allocate_otherwise(random.Random(seed), read_form(PARENT), Grammar(Interface("allocation")))
        assert change is not None
        sources.add(write_form(change[0]))
    found = []
    for source in sorted(sources):
        space: dict[str, Callable[..., torch.Tensor]] = {}
        exec(source, space)
        found.append(space["allocate"])
    return found


@pytest.fixture(scope="module")
def written() -> list[Callable[..., torch.Tensor]]:
    return allocations()


@given(
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 40), st.integers(0, 10**6), st.sampled_from((0.0, 1.0, 1e6))
)
def test_every_total_is_met_exactly_within_the_limits(
    written: list[Callable[..., torch.Tensor]], layers: int, heads: int, tokens: int, seed: int, scale: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = [scale * torch.randn(heads, tokens, generator=draw) for _ in range(layers)]
    total = random.Random(seed).randint(layers * heads, layers * heads * tokens)
    assert len(written) == 7
    for allocate in written:
        counts = allocate(scores, total, 1)
        assert counts.shape == (layers, heads) and counts.dtype == torch.int64
        assert int(counts.sum()) == total
        assert 1 <= int(counts.min()) <= int(counts.max()) <= tokens


def test_a_slope_falls_or_rises_with_depth(written: list[Callable[..., torch.Tensor]]) -> None:
    scores = [torch.rand(2, 100, generator=torch.Generator().manual_seed(0)) for _ in range(4)]
    sloped = [each for each in written if "slope" in (each.__kwdefaults__ or {})]
    for allocate in sloped:
        counts = allocate(scores, 160, 1)[:, 0].tolist()
        falling = allocate.__kwdefaults__["slope"] > 0  # type: ignore[index]
        assert counts == sorted(counts, reverse=falling) and counts[0] != counts[-1]
    assert len(sloped) == 4
