"""Every built-in policy against the contract and against its formula written naively."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cachecraft.policy.check import check_policy, synthetic_layer
from cachecraft.policy.contract import builtin_policies, load_policy
from cachecraft.policy.decide import decide, keep_count, score
from cachecraft.policy.features import LayerFeatures

NAMES = builtin_policies()
RATIOS = (0.0, 0.5, 0.75, 0.99)
TOLERANCE = 2e-5


def naive_attention(layer: LayerFeatures) -> Tensor:
    """(G, H/G, T, T): the whole causal softmax in float64."""
    keys, queries = layer.given("keys").double(), layer.given("queries").double()
    group = layer.heads // layer.kv_heads
    logits = queries @ keys.repeat_interleave(group, dim=0).transpose(1, 2) / math.sqrt(layer.head_dim)
    logits = logits.masked_fill(torch.ones(layer.tokens, layer.tokens).triu(1).bool(), -torch.inf)
    return logits.softmax(-1).view(layer.kv_heads, group, layer.tokens, layer.tokens)


def cosine_to_mean(vectors: Tensor) -> Tensor:
    out = torch.zeros(vectors.shape[:2], dtype=torch.float64)
    for head, rows in enumerate(vectors.double()):
        mean = sum(row / row.norm() for row in rows) / len(rows)
        for j, row in enumerate(rows):
            out[head, j] = (row @ mean) / (row.norm() * mean.norm())
    return out


def pooled(row: list[float], kernel: int) -> list[float]:
    reach = kernel // 2
    return [sum(row[max(0, j - reach) : j + reach + 1]) / kernel for j in range(len(row))]


def ranks(row: list[float]) -> list[float]:
    order = sorted(range(len(row)), key=lambda j: (row[j], j))
    return [order.index(j) / len(row) for j in range(len(row))]


def naive_snapkv(layer: LayerFeatures) -> Tensor:
    window, a = 64, naive_attention(layer)
    if layer.tokens <= window:
        return torch.zeros(layer.kv_heads, layer.tokens)
    before = layer.tokens - window
    rows = []
    for head in range(layer.kv_heads):
        row = [float(a[head, :, before:, j].mean()) for j in range(before)]
        smooth = pooled(row, 5)
        rows.append(smooth + [max(smooth)] * window)
    return torch.tensor(rows)


def naive_frc(layer: LayerFeatures) -> Tensor:
    a, tokens = naive_attention(layer), layer.tokens
    rows = []
    for head in range(layer.kv_heads):
        local = [[float(a[head, h, j : j + 32, j].mean()) for j in range(tokens)] for h in range(a.shape[1])]
        mean = [sum(column) / len(column) for column in zip(*local, strict=True)]
        peak = [max(column) for column in zip(*local, strict=True)]
        signals = zip(ranks(mean), ranks(pooled(mean, 9)), ranks(peak), strict=True)
        rows.append([0.5 * x + 0.3 * y + 0.2 * z for x, y, z in signals])
    return torch.tensor(rows)


NAIVE = {
    "streaming_llm": lambda x: torch.arange(float(x.tokens)).expand(x.kv_heads, -1),
    "knorm": lambda x: -x.given("keys").double().norm(dim=-1),
    "vnorm": lambda x: x.given("values").double().norm(dim=-1),
    "vk_ratio": lambda x: x.given("values").double().norm(dim=-1) / x.given("keys").double().norm(dim=-1),
    "keydiff": lambda x: -cosine_to_mean(x.given("keys")),
    "value_diversity": lambda x: -cosine_to_mean(x.given("values")),
    "snapkv": naive_snapkv,
    "tova": lambda x: naive_attention(x)[:, :, -1].mean(dim=(0, 1)).expand(x.kv_heads, -1),
    "observed_attention": lambda x: (naive_attention(x).sum(2) / torch.arange(x.tokens, 0, -1)).mean(1),
    "h2o": lambda x: naive_attention(x).sum(2).mean(1),
    "frc": naive_frc,
}


def budget(layer: LayerFeatures, ratio: float) -> Tensor:
    return torch.full((layer.kv_heads,), keep_count(layer.tokens, ratio))


def test_every_policy_but_random_has_a_naive_formula_here() -> None:
    assert set(NAMES) - set(NAIVE) == {"random"}


@pytest.mark.parametrize("name", NAMES)
def test_a_builtin_policy_keeps_the_contract(name: str) -> None:
    assert check_policy(load_policy(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_builtin_policy_says_what_it_is(name: str) -> None:
    policy = load_policy(name)
    assert policy.name == name
    assert policy.summary.endswith((".", ")."))
    assert policy.cost in {"O(T)", "O(wT)", "O(T^2)"}
    assert len(policy.source.splitlines()) <= 60


@pytest.mark.parametrize("tokens", [1, 5, 64, 65, 90])
@pytest.mark.parametrize("name", sorted(NAIVE))
def test_scores_are_those_of_the_formula(name: str, tokens: int) -> None:
    layer = synthetic_layer(tokens, kv_heads=2, group=3, seed=4)
    found = score(load_policy(name), layer, budget(layer, 0.5)).scores
    assert torch.allclose(found.double(), NAIVE[name](layer).double(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", range(1, 9))
@pytest.mark.parametrize("name", NAMES)
def test_tiny_contexts_have_a_defined_result_of_the_exact_size(name: str, tokens: int, dtype: torch.dtype) -> None:
    layer = synthetic_layer(tokens, group=3, dtype=dtype, seed=1)
    for ratio, decision in zip(
        RATIOS, decide(load_policy(name), layer, [budget(layer, r) for r in RATIOS]), strict=True
    ):
        assert decision.mask.sum(-1).tolist() == [keep_count(tokens, ratio)] * layer.kv_heads


@pytest.mark.parametrize("name", NAMES)
def test_several_budgets_at_once_give_what_each_gives_alone(name: str) -> None:
    policy = load_policy(name)
    layer = synthetic_layer(150, kv_heads=3, group=2)
    keeps = [budget(layer, ratio) for ratio in RATIOS] + [torch.tensor([1, 40, 150])]
    together = decide(policy, layer, keeps)
    for keep, decision in zip(keeps, together, strict=True):
        alone = decide(policy, synthetic_layer(150, kv_heads=3, group=2), [keep])[0]
        assert torch.equal(alone.mask, decision.mask)
        assert alone.forced == decision.forced


def test_random_draws_differ_by_draw_layer_and_content_and_repeat_otherwise() -> None:
    def drawn(spec: str, **where: int) -> Tensor:
        layer = synthetic_layer(50, **where)
        return score(load_policy(spec), layer, budget(layer, 0.5)).scores

    assert torch.equal(drawn("random"), drawn("random"))
    for other in (drawn("random:draw=1"), drawn("random", layer=1), drawn("random", seed=1)):
        assert not torch.equal(drawn("random"), other)


def test_streaming_keeps_four_sinks_and_the_most_recent() -> None:
    layer = synthetic_layer(20)
    mask = decide(load_policy("streaming_llm"), layer, [torch.tensor([10, 10])])[0].mask
    assert mask[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]


def test_h2o_protects_half_of_the_budget_and_scores_once() -> None:
    layer = synthetic_layer(40)
    policy = load_policy("h2o")
    scored = score(policy, layer, torch.tensor([20, 20]))
    assert (scored.first, scored.last) == (0, 10)
    assert scored.protect_read_keep
    assert not scored.read_keep
    decisions = decide(policy, layer, [torch.tensor([20, 20]), torch.tensor([8, 8])])
    assert decisions[0].mask[:, 30:].all()
    assert decisions[1].mask[:, 36:].all()


def test_snapkv_keeps_the_most_recent_entries_of_a_context_inside_its_window() -> None:
    layer = synthetic_layer(30)
    decision = decide(load_policy("snapkv"), layer, [torch.tensor([7, 7])])[0]
    assert decision.mask[:, 23:].all()
    assert decision.forced


def test_tova_gives_all_heads_the_same_choice() -> None:
    layer = synthetic_layer(80, kv_heads=3)
    mask = decide(load_policy("tova"), layer, [torch.full((3,), 20)])[0].mask
    assert (mask == mask[0]).all()
    assert mask[:, -1].all()


def test_frc_keeps_runs_of_its_chunk_size() -> None:
    layer = synthetic_layer(160)
    mask = decide(load_policy("frc:sinks=0,recent=0"), layer, [torch.tensor([40, 40])])[0].mask
    assert mask.view(2, 20, 8).sum(-1).unique().tolist() == [0, 8]
