"""Worked examples and edges of single policies: what a formula leaves open has a stated, tested result."""

from __future__ import annotations

import math

import pytest
import torch
from tests.policies.formulas import whole_attention
from torch import Tensor

from cachecraft.errors import FeatureError, PolicyError
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import load_policy
from cachecraft.policy.decide import decide, keep_count, score
from cachecraft.policy.features import LayerFeatures


def budget(layer: LayerFeatures, ratio: float) -> Tensor:
    return torch.full((layer.kv_heads,), keep_count(layer.tokens, ratio))


def scores(spec: str, layer: LayerFeatures, ratio: float = 0.5) -> Tensor:
    return score(load_policy(spec), layer, budget(layer, ratio)).scores


def kept(spec: str, layer: LayerFeatures, keep: int) -> Tensor:
    return decide(load_policy(spec), layer, [torch.full((layer.kv_heads,), keep)])[0].mask


def changed(layer: LayerFeatures, **arrays: Tensor) -> LayerFeatures:
    """The same layer with other keys, values or queries."""
    given = {name: arrays.get(name, layer.given(name)) for name in ("keys", "values", "queries")}
    return LayerFeatures(
        **given, layer=0, layers=2, rotary=layer.rotary, output_projection=layer.given("output_projection")
    )


def test_random_draws_differ_by_draw_layer_and_content_and_repeat_otherwise() -> None:
    for policy in ("random", "leverage", "compactor"):
        first = scores(policy, synthetic_layer(50))
        assert torch.equal(first, scores(policy, synthetic_layer(50)))
        assert not torch.equal(first, scores(f"{policy}:draw=1", synthetic_layer(50)))
        assert not torch.equal(first, scores(policy, synthetic_layer(50, layer=1)))
        assert not torch.equal(first, scores(policy, synthetic_layer(50, seed=1)))


def test_streaming_llm_keeps_sinks_and_the_most_recent() -> None:
    mask = kept("streaming_llm", synthetic_layer(20), 10)
    assert mask.all(0).nonzero().flatten().tolist() == [*range(4), *range(14, 20)]


def test_h2o_gives_half_of_each_budget_to_recent_entries_and_scores_once() -> None:
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
    mask = kept("tova", layer, 20)
    assert (mask == mask[0]).all()
    assert mask[:, -1].all()


def test_frc_keeps_runs_of_its_chunk_size() -> None:
    mask = kept("frc:sinks=0,recent=0", synthetic_layer(160), 40)
    assert mask.view(2, 20, 8).sum(-1).unique().tolist() == [0, 8]


def test_paged_eviction_keeps_whole_pages_when_it_is_told_to() -> None:
    layer = synthetic_layer(160)
    paged = decide(load_policy("paged_eviction", selector="pages:16"), layer, [torch.tensor([48, 48])])[0].mask
    assert paged.view(2, 10, 16).sum(-1).unique().tolist() == [0, 16]
    means = scores("vk_ratio", layer).view(2, 10, 16).mean(-1)
    assert torch.equal(paged.view(2, 10, 16).any(-1), means >= means.topk(3).values[:, -1:])


def test_scissorhands_counts_equal_attention_as_attention() -> None:
    plain = synthetic_layer(50)
    still = changed(plain, queries=torch.zeros_like(plain.given("queries")))
    assert torch.equal(scores("scissorhands", still), torch.ones(2, 50))


def test_scissorhands_looks_at_its_window_only() -> None:
    layer = synthetic_layer(60, group=1)
    a = whole_attention(layer)[:, 0]
    expected = torch.zeros(2, 60)
    for i in (58, 59):
        expected[:, : i + 1] += (a[:, i, : i + 1] >= 1 / (i + 1)).float()
    expected[:, :59] /= 2
    assert torch.allclose(scores("scissorhands:window=2", layer), expected)
    with pytest.raises(FeatureError, match="window of 0"):
        scores("scissorhands:window=0", layer)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 1.0])
def test_scissorhands_may_count_the_highest_part_of_each_query_instead(quantile: float) -> None:
    layer = synthetic_layer(30, group=1)
    a = whole_attention(layer)[:, 0]
    expected = torch.zeros(2, 30)
    for i in range(30):
        ordered = a[:, i, : i + 1].sort(dim=-1).values
        needed = ordered[:, max(1, math.ceil(quantile * (i + 1))) - 1]
        expected[:, : i + 1] += (a[:, i, : i + 1] >= needed[:, None] * (1 - 1e-6)).float()
    expected /= torch.arange(30, 0, -1)
    assert torch.allclose(scores(f"scissorhands:quantile={quantile}", layer), expected)


def test_scissorhands_protects_its_sinks_and_recent_entries() -> None:
    mask = kept("scissorhands", synthetic_layer(500), 14)
    assert mask.all(0).nonzero().flatten().tolist() == [*range(4), *range(490, 500)]


def test_small_blocks_of_scissorhands_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = synthetic_layer(70)
    expected = scores("scissorhands:window=40", layer)
    policy = load_policy("scissorhands:window=40")
    monkeypatch.setitem(policy._functions["score_tokens"].func.__globals__, "_FLOATS", 4 * 70 * 3)  # type: ignore[attr-defined]
    assert torch.equal(score(policy, layer, budget(layer, 0.5)).scores, expected)


@pytest.mark.parametrize("tokens", [1, 3, 4])
def test_expected_attention_keeps_the_most_recent_of_a_context_of_sinks(tokens: int) -> None:
    layer = synthetic_layer(tokens)
    assert torch.equal(scores("expected_attention", layer), torch.zeros(2, tokens))
    assert kept("expected_attention:sinks=0", layer, tokens).all()
    assert kept("expected_attention", layer, 1)[:, 0].all()  # the first sink


def test_expected_attention_adds_its_epsilon_before_the_values_norm() -> None:
    layer = synthetic_layer(40)
    plain, raised, bare = (
        scores(f"expected_attention{more}", layer)[:, 4:] for more in ("", ":epsilon=0.01", ":value_norm=false")
    )
    norms = layer.given("values")[:, 4:].norm(dim=-1)
    assert torch.allclose(raised, plain + 0.01 * norms, atol=1e-6)
    assert torch.allclose(plain, bare * norms, atol=1e-6)
    assert torch.allclose(bare.sum(dim=-1), torch.ones(2), atol=1e-5)


def test_expected_attention_is_what_normal_queries_give_on_average_at_the_next_position() -> None:
    plain = synthetic_layer(3000, kv_heads=1, group=1)
    normal = torch.randn(1, 3000, 16, generator=torch.Generator().manual_seed(3)) + 0.5
    layer = changed(plain, queries=plain.rotary.rotate(normal, torch.arange(3000)))
    found = scores("expected_attention:value_norm=false,future=1", layer)[0, 4:]
    there = plain.rotary.rotate(normal[0, 4:], torch.tensor(3000))
    average = (there @ layer.given("keys")[0, 4:].T / 4).exp().mean(dim=0)
    assert torch.allclose(found, average / average.sum(), rtol=0.3)
    assert torch.corrcoef(torch.stack((found.log(), average.log())))[0, 1] > 0.999


def test_lagkv_takes_a_channel_without_spread_as_zero() -> None:
    plain = synthetic_layer(400)
    keys = plain.given("keys").clone()
    keys[:, 132:260, 0] = 7.0  # the second partition does not vary in one channel
    found = scores("lagkv", changed(plain, keys=keys))
    assert found.isfinite().all()
    keys[:, 4:132, 0] = -100.0  # and so what the first one has there does not count
    assert torch.equal(scores("lagkv", changed(plain, keys=keys)), found)


@pytest.mark.parametrize("tokens", [1, 4, 30, 259])
def test_lagkv_keeps_sinks_and_the_most_recent_of_a_context_without_two_partitions(tokens: int) -> None:
    keep = keep_count(tokens, 0.5)
    sinks = min(4, keep)
    expected = [j < sinks or j >= tokens - (keep - sinks) for j in range(tokens)]
    assert kept("lagkv", synthetic_layer(tokens), keep)[0].tolist() == expected


def test_lagkv_protects_sinks_the_last_partition_and_the_remainder() -> None:
    layer = synthetic_layer(4 + 3 * 128 + 9)
    mask = kept("lagkv", layer, 4 + 128 + 9)
    assert mask.all(0).nonzero().flatten().tolist() == [*range(4), *range(4 + 256, 4 + 384 + 9)]
    with pytest.raises(PolicyError, match="lag of 0"):
        scores("lagkv:lag=0", layer)


def test_lagkv_keeps_equally_many_of_each_partition() -> None:
    mask = kept("lagkv", synthetic_layer(4 + 4 * 128), 4 + 128 + 60)
    assert mask[:, 4 : 4 + 3 * 128].view(2, 3, 128).sum(-1).tolist() == [[20, 20, 20]] * 2


def test_leverage_is_high_for_the_one_key_that_differs() -> None:
    plain = synthetic_layer(200)
    positions = torch.arange(200)
    keys = torch.ones(2, 200, 16)
    keys[:, 77] = torch.linspace(-3, 3, 16)
    found = scores("leverage", changed(plain, keys=plain.rotary.rotate(keys, positions)))
    assert found.argmax(dim=-1).tolist() == [77, 77]


def test_noncausal_attention_of_a_short_last_chunk_is_that_of_the_chunk_alone() -> None:
    layer = synthetic_layer(300)
    alone = LayerFeatures(*(layer.given(name)[:, 256:] for name in ("keys", "values", "queries")), layer=0, layers=1)
    whole = layer.view().chunk_attention(256)
    assert torch.allclose(whole[..., 256:], alone.view().chunk_attention(256), atol=1e-6)
    assert torch.allclose(whole.view(2, 2, -1)[..., 256:].sum(-1), torch.full((2, 2), 44.0), atol=1e-3)


@pytest.mark.parametrize("tokens", [1, 7, 12])
def test_compactor_is_all_protection_up_to_twelve_entries(tokens: int) -> None:
    assert torch.equal(scores("compactor", synthetic_layer(tokens)), torch.zeros(2, tokens))


def test_compactor_weighs_leverage_by_the_share_that_each_head_evicts() -> None:
    layer = synthetic_layer(100)
    found = score(load_policy("compactor"), layer, torch.tensor([10, 60]))
    assert found.read_keep
    inside = slice(8, 96)
    for head, share in enumerate((0.9, 0.4)):
        fixed = scores(f"compactor:blend={share}", layer)
        assert torch.allclose(found.scores[head, inside], fixed[head, inside], atol=1e-5)
    assert not score(load_policy("compactor:blend=0.35"), layer, torch.tensor([10, 60])).read_keep


def test_cur_takes_a_window_of_zeros_as_no_share() -> None:
    plain = synthetic_layer(40)
    values = plain.given("values").clone()
    values[:, 16:32] = 0
    found = scores("cur", changed(plain, values=values))
    assert torch.equal(found[:, 16:32], torch.zeros(2, 16))
    assert found.isfinite().all()


def test_q_filter_points_to_the_queries_side() -> None:
    plain = synthetic_layer(30, group=1)
    direction = torch.linspace(-1, 1, 16)
    queries = direction + 0.01 * plain.given("queries")
    for sign in (1, -1):
        found = scores("q_filter", changed(plain, queries=sign * queries))
        expected = sign * plain.given("keys") @ direction / direction.norm()
        assert torch.allclose(found, expected, atol=0.05)


def test_caote_stays_finite_where_one_entry_has_all_the_weight(tmp_path) -> None:
    path = tmp_path / "one.py"
    path.write_text("def score_tokens(f):\n    return (f.positions == 3).float().expand(f.kv_heads, -1)\n")
    layer = synthetic_layer(10)
    found = scores(f"caote({path})", layer)
    assert torch.equal(found, torch.zeros(2, 10))  # the output is that entry's value, and the others weigh nothing


@pytest.mark.parametrize("wrapper", ["caote", "criticalkv"])
@pytest.mark.parametrize("base", ["keydiff", "knorm", "compactor"])
def test_a_wrapper_that_multiplies_refuses_negative_scores_in_a_sentence(wrapper: str, base: str) -> None:
    with pytest.raises(PolicyError, match=f"{wrapper} multiplies .* but {base} gave -.* such as snapkv"):
        scores(f"{wrapper}({base})", synthetic_layer(40))


def test_criticalkv_takes_its_first_stage_from_each_heads_own_budget() -> None:
    layer = synthetic_layer(50)
    policy = load_policy("criticalkv(observed_attention)")
    keep = torch.tensor([10, 31])
    scored = score(policy, layer, keep)
    assert scored.read_keep
    mask = decide(policy, layer, [keep])[0].mask
    plain = scores("observed_attention", layer)
    for head, first in enumerate((5, 15)):
        assert mask[head, plain[head].topk(first).indices].all()
        assert int((scored.scores[head] == scored.scores.max()).sum()) == first


def test_criticalkv_keeps_what_its_base_protects() -> None:
    mask = kept("criticalkv(snapkv:window=8)", synthetic_layer(60), 10)
    assert mask[:, 52:].all()


def test_pooling_raises_and_lowers_no_end_of_the_text() -> None:
    for policy in ("keydiff", "knorm"):  # negative scores: zeros outside would raise the ends
        found = scores(f"pooled({policy}):kernel=9", synthetic_layer(60))
        plain = scores(policy, synthetic_layer(60))
        assert torch.allclose(found[:, 0], plain[:, :5].mean(dim=1), atol=1e-5)
    with pytest.raises(FeatureError, match="kernel of 0"):
        scores("pooled(knorm):kernel=0", synthetic_layer(5))
