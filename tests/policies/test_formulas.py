"""Scores are those of the formulas, which formulas.py writes a second time and naively."""

from __future__ import annotations

import pytest
import torch
from tests.policies.formulas import NAIVE, caote, criticalkv

from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import builtin_policies, builtin_wrappers, load_policy
from cachecraft.policy.decide import keep_count, score

TOLERANCE = 2e-5
# Fewer keys than channels all have a leverage near 1, and what is left of it is standardised: rounding shows.
LOOSE = {"leverage": 1e-3, "compactor": 1e-3}
WRAPPERS_HERE = {"caote", "criticalkv", "pooled", "protected"}


def scored(spec: str, tokens: int, ratio: float = 0.5, group: int = 3) -> torch.Tensor:
    layer = synthetic_layer(tokens, kv_heads=2, group=group, seed=4)
    return score(load_policy(spec), layer, torch.full((2,), keep_count(tokens, ratio))).scores


def test_every_policy_but_random_has_a_naive_formula() -> None:
    assert set(builtin_policies()) - set(NAIVE) == {"random"}
    assert set(builtin_wrappers()) == WRAPPERS_HERE


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 12, 13, 64, 65])
@pytest.mark.parametrize("name", sorted(NAIVE))
def test_scores_are_those_of_the_formula(name: str, tokens: int) -> None:
    for group in (1, 3) if tokens == 13 else (3,):
        layer = synthetic_layer(tokens, kv_heads=2, group=group, seed=4)
        expected, found = NAIVE[name](layer).double(), scored(name, tokens, group=group).double()
        assert torch.allclose(found, expected, rtol=TOLERANCE, atol=LOOSE.get(name, TOLERANCE))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("lagkv", 259), ("lagkv", 260), ("lagkv", 401), ("noncausal", 257), ("compactor", 300), ("scissorhands", 415)],
)
def test_scores_of_contexts_of_several_partitions_are_those_of_the_formula(name: str, tokens: int) -> None:
    expected = NAIVE[name](synthetic_layer(tokens, kv_heads=2, group=3, seed=4)).double()
    assert torch.allclose(scored(name, tokens).double(), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("base", ["snapkv", "observed_attention", "scissorhands"])
@pytest.mark.parametrize("tokens", [1, 2, 30, 80])
def test_caote_is_the_change_of_the_output(base: str, tokens: int) -> None:
    expected = caote(scored(base, tokens), synthetic_layer(tokens, kv_heads=2, group=3, seed=4))
    assert torch.allclose(scored(f"caote({base})", tokens).double(), expected, rtol=1e-4, atol=TOLERANCE)


@pytest.mark.parametrize("base", ["snapkv", "observed_attention", "expected_attention:value_norm=false"])
@pytest.mark.parametrize(("tokens", "ratio"), [(1, 0.5), (2, 0.0), (30, 0.5), (80, 0.75), (80, 0.99)])
def test_criticalkv_weighs_what_its_first_stage_leaves(base: str, tokens: int, ratio: float) -> None:
    layer = synthetic_layer(tokens, kv_heads=2, group=3, seed=4)
    expected = criticalkv(scored(base, tokens, ratio), layer, keep_count(tokens, ratio))
    found = scored(f"criticalkv({base})", tokens, ratio).double()
    first = expected.isinf()
    assert torch.allclose(found[~first], expected[~first], rtol=1e-4, atol=1e-9)
    for head in range(2):
        rest = found[head, ~first[head]]
        assert not rest.numel() or found[head, first[head]].min() > rest.max()


@pytest.mark.parametrize(("kernel", "before", "after"), [(1, 0, 0), (3, 1, 1), (4, 1, 2), (5, 2, 2), (99, 49, 49)])
def test_pooling_is_over_the_neighbours_that_exist(kernel: int, before: int, after: int) -> None:
    plain = scored("keydiff", 40)
    mean, peak = (scored(f"pooled(keydiff):kernel={kernel}{more}", 40) for more in ("", ",highest=true"))
    for j in range(40):
        near = plain[:, max(0, j - before) : j + after + 1]
        assert torch.allclose(mean[:, j], near.mean(dim=1), atol=1e-5)
        assert torch.equal(peak[:, j], near.amax(dim=1))


def test_protection_of_ones_choice_leaves_the_scores_as_they_are() -> None:
    layer = synthetic_layer(40)
    policy = load_policy("protected(streaming_llm):first=2,last=3")
    assert policy.protect(layer) == (2, 3) != load_policy("streaming_llm").protect(layer)
    assert torch.equal(scored("protected(streaming_llm):first=2,last=3", 40), scored("streaming_llm", 40))
