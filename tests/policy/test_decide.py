"""Decisions: budgets, protection, scoring as rarely as a policy allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.errors import BudgetError
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import Policy, load_policy
from cachecraft.policy.decide import decide, keep_count, score, select


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_budget_is_never_empty_and_never_more_than_there_is(tokens: int, ratio: float) -> None:
    assert 1 <= keep_count(tokens, ratio) <= tokens


@pytest.mark.parametrize(
    ("tokens", "ratio", "kept"),
    [(1000, 0.88, 120), (100, 0.9, 10), (1, 0.99, 1), (10, 0.0, 10), (7, 0.5, 3), (10, 0.7, 3)],
)
def test_a_share_is_rounded_down_without_binary_surprises(tokens: int, ratio: float, kept: int) -> None:
    assert keep_count(tokens, ratio) == kept


def test_a_number_to_keep_is_capped_by_the_context() -> None:
    assert keep_count(50, keep=128) == 50
    assert keep_count(500, keep=128) == 128


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, float("nan")])
def test_a_ratio_that_means_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(BudgetError, match="below 1"):
        keep_count(10, ratio)


def test_a_budget_is_one_thing() -> None:
    for arguments in ({}, {"ratio": 0.5, "keep": 3}):
        with pytest.raises(BudgetError, match="exactly one"):
            keep_count(10, **arguments)
    with pytest.raises(BudgetError, match="at least 1"):
        keep_count(10, keep=0)


@pytest.mark.parametrize("keep", [[0, 2], [2, 11], [2], [[2, 2]], [1.5, 2.0]])
def test_a_budget_that_does_not_fit_the_layer_is_refused(keep: list[object]) -> None:
    with pytest.raises(BudgetError, match="does not fit layer 0"):
        decide(load_policy("knorm"), synthetic_layer(10), [torch.tensor(keep)])


def test_scoring_and_selecting_apart_is_deciding() -> None:
    layer, keep = synthetic_layer(60), torch.tensor([9, 17])
    for name in ("snapkv", "frc", "h2o", "keydiff"):
        policy = load_policy(name)
        apart = select(policy, score(policy, layer, keep), keep, layer)
        assert torch.equal(apart.mask, decide(policy, layer, [keep])[0].mask)


def counting(write_policy: Callable[..., Policy], body: str) -> tuple[Policy, list[int]]:
    policy = write_policy("calls = []\ndef score_tokens(f):\n    calls.append(1)\n" + body)
    calls: list[int] = policy._functions["score_tokens"].func.__globals__["calls"]  # type: ignore[attr-defined]
    return policy, calls


def test_one_scoring_serves_all_budgets_unless_the_budget_was_read(
    write_policy: Callable[..., Policy],
) -> None:
    keeps = [torch.tensor([k, k]) for k in (3, 5, 9)]
    policy, calls = counting(write_policy, "    return f.keys[..., 0]\n")
    decide(policy, synthetic_layer(10), keeps)
    assert len(calls) == 1
    policy, calls = counting(write_policy, "    return f.keys[..., 0] * float(f.keep[0] - 4)\n")
    decisions = decide(policy, synthetic_layer(10), keeps)
    assert len(calls) == 3
    keys = synthetic_layer(10).given("keys")[..., 0]
    assert decisions[0].mask.gather(1, keys.argmin(-1, keepdim=True)).all()
    assert decisions[1].mask.gather(1, keys.argmax(-1, keepdim=True)).all()


def test_forced_says_that_protection_left_nothing_to_the_scores() -> None:
    layer = synthetic_layer(100)
    keeps = [torch.tensor(k) for k in ([64, 64], [65, 65], [65, 20], [100, 100])]
    assert [d.forced for d in decide(load_policy("snapkv"), layer, keeps)] == [True, False, True, False]


def test_a_selector_from_outside_replaces_the_policys_own() -> None:
    layer, keep = synthetic_layer(64), torch.tensor([16, 16])
    paged = decide(load_policy("vnorm", selector="pages:16"), layer, [keep])[0].mask
    assert paged.view(2, 4, 16).sum(-1).sort().values.tolist() == [[0, 0, 0, 16]] * 2
    assert not load_policy("frc", selector="tokens").custom_selector


def test_a_selector_that_writes_into_its_scores_spoils_no_other_budget(
    write_policy: Callable[..., Policy],
) -> None:
    policy = write_policy(
        "def score_tokens(f):\n    return f.positions.float().expand(f.kv_heads, -1).clone()\n"
        "def select_tokens_to_keep(scores, keep, f):\n    order = scores.argsort(-1, descending=True)\n"
        "    scores.neg_()\n    return torch.zeros_like(scores).scatter(1, order[:, :int(keep[0])], 1).bool()"
    )
    for decision in decide(policy, synthetic_layer(10), [torch.tensor([3, 3])] * 2):
        assert decision.mask[:, 7:].all()
