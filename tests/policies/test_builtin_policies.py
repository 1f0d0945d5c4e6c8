"""Every built-in policy, whatever it computes: the contract, tiny contexts, budgets, dtypes, heads and selectors.

A new policy gets all of this by being a file; a wrapper is tried around several bases. What the scores are is in
test_formulas.py and test_formula_edges.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cachecraft.policy.check import check_policy, synthetic_layer
from cachecraft.policy.contract import builtin_policies, builtin_wrappers, load_policy
from cachecraft.policy.decide import decide, keep_count, score
from cachecraft.policy.features import LayerFeatures

BASES = ("snapkv", "observed_attention", "expected_attention:value_norm=false")
SPECS = (*builtin_policies(), *(f"{wrapper}({base})" for wrapper in builtin_wrappers() for base in BASES))
RATIOS = (0.0, 0.5, 0.75, 0.99)
# Each dtype with another number of kv heads and query heads per kv head; `check_policy` has float32 with all of them.
SHAPES = {torch.float32: (2, 3), torch.bfloat16: (1, 4), torch.float16: (3, 1)}
# Every row of the single-pass table, and what wraps or stands beside it.
PUBLISHED = (
    *("random", "streaming_llm", "knorm", "vnorm", "keydiff", "value_diversity", "vk_ratio", "paged_eviction"),
    *("snapkv", "tova", "observed_attention", "h2o", "scissorhands", "expected_attention", "lagkv", "noncausal"),
    *("leverage", "compactor", "cur", "q_filter", "caote", "criticalkv", "frc", "pooled", "protected", "craft"),
)


def budget(layer: LayerFeatures, ratio: float) -> Tensor:
    return torch.full((layer.kv_heads,), keep_count(layer.tokens, ratio))


def test_every_method_of_the_single_pass_table_is_there() -> None:
    assert set(PUBLISHED) <= {*builtin_policies(), *builtin_wrappers()}


def test_wrappers_are_listed_apart_because_they_need_another_policy() -> None:
    assert {"caote", "criticalkv", "pooled", "protected"} <= set(builtin_wrappers())
    assert not set(builtin_policies()) & set(builtin_wrappers())


@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_keeps_the_contract(spec: str) -> None:
    assert check_policy(load_policy(spec)) == []


@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_says_what_it_is(spec: str) -> None:
    policy = load_policy(spec)
    assert policy.name == spec
    assert policy.summary.endswith((".", ")."))
    assert policy.cost in {"O(T)", "O(wT)", "O(T^2)"}
    assert len(policy.source.splitlines()) <= 150


@pytest.mark.parametrize("dtype", SHAPES)
@pytest.mark.parametrize("spec", SPECS)
def test_tiny_contexts_have_a_defined_result_of_the_exact_size(spec: str, dtype: torch.dtype) -> None:
    policy = load_policy(spec)
    kv_heads, group = SHAPES[dtype]
    for tokens in (1, 2, 3, 5, 8):  # all windows, chunks, partitions and sinks are larger
        layer = synthetic_layer(tokens, kv_heads=kv_heads, group=group, dtype=dtype, seed=1, strict=True)
        for ratio, decision in zip(RATIOS, decide(policy, layer, [budget(layer, r) for r in RATIOS]), strict=True):
            assert decision.mask.sum(-1).tolist() == [keep_count(tokens, ratio)] * kv_heads
        assert layer.changed() == []


@pytest.mark.parametrize("tokens", [13, 65, 129, 260, 401])
@pytest.mark.parametrize("spec", SPECS)
def test_contexts_around_every_window_have_the_exact_size(spec: str, tokens: int) -> None:
    layer = synthetic_layer(tokens, seed=2, strict=True)
    for ratio, decision in zip(
        RATIOS, decide(load_policy(spec), layer, [budget(layer, r) for r in RATIOS]), strict=True
    ):
        assert decision.mask.sum(-1).tolist() == [keep_count(tokens, ratio)] * layer.kv_heads


@pytest.mark.parametrize("spec", SPECS)
def test_several_budgets_at_once_give_what_each_gives_alone(spec: str) -> None:
    policy = load_policy(spec)
    layer = synthetic_layer(150, kv_heads=3, group=2)
    keeps = [budget(layer, ratio) for ratio in RATIOS] + [torch.tensor([1, 40, 150])]
    together = decide(policy, layer, keeps)
    for keep, decision in zip(keeps, together, strict=True):
        alone = decide(policy, synthetic_layer(150, kv_heads=3, group=2), [keep])[0]
        assert torch.equal(alone.mask, decision.mask)
        assert alone.forced == decision.forced


@pytest.mark.parametrize("selector", ["chunks:20", "pages:16"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_may_be_crossed_with_every_selector(spec: str, selector: str) -> None:
    policy = load_policy(spec, selector=selector)
    for tokens in (1, 7, 70):
        layer = synthetic_layer(tokens, strict=True)
        for ratio, decision in zip(RATIOS, decide(policy, layer, [budget(layer, r) for r in RATIOS]), strict=True):
            assert decision.mask.sum(-1).tolist() == [keep_count(tokens, ratio)] * layer.kv_heads


@pytest.mark.parametrize("spec", SPECS)
def test_equal_entries_leave_a_policy_finite(spec: str) -> None:
    ones = torch.ones(2, 300, 16)
    plain = synthetic_layer(300)
    layer = LayerFeatures(
        *(ones, ones, ones.repeat(2, 1, 1)),
        layer=0,
        layers=1,
        rotary=plain.rotary,
        output_projection=plain.given("output_projection"),
    )
    assert decide(load_policy(spec), layer, [budget(layer, 0.5)])[0].mask.sum(-1).tolist() == [150, 150]


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e4])
@pytest.mark.parametrize("spec", SPECS)
def test_zero_tiny_and_huge_entries_leave_a_policy_finite(spec: str, size: float) -> None:
    plain = synthetic_layer(280)
    arrays = [plain.given(name) * size for name in ("keys", "values", "queries")]
    layer = LayerFeatures(
        *arrays, layer=0, layers=1, rotary=plain.rotary, output_projection=plain.given("output_projection")
    )
    assert score(load_policy(spec), layer, budget(layer, 0.5)).scores.isfinite().all()
