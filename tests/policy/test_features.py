"""Features: the right numbers, whatever was asked before, read-only, and never a T x T matrix."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cachecraft.errors import FeatureError
from cachecraft.policy import attention
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.features import LayerFeatures, RotaryTable

TOLERANCE = 1e-5


def causal_logits(layer: LayerFeatures) -> Tensor:
    keys, queries = layer.given("keys").double(), layer.given("queries").double()
    logits = queries @ keys.repeat_interleave(layer.heads // layer.kv_heads, 0).transpose(1, 2)
    mask = torch.ones(layer.tokens, layer.tokens).triu(1).bool()
    return (logits * layer.scaling).masked_fill(mask, -torch.inf)


def bare(tokens: int = 6, **more: Tensor) -> LayerFeatures:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(n, tokens, 8, generator=draw) for n in (4, 2, 2))
    return LayerFeatures(k, v, q, layer=0, layers=1, **more)


@pytest.mark.parametrize("tokens", [1, 2, 31, 128, 129, 300])
@pytest.mark.parametrize("known", [True, False])
def test_attention_sums_are_those_of_the_whole_matrix(tokens: int, known: bool) -> None:
    plain = synthetic_layer(tokens, group=3)
    logits = causal_logits(plain)
    a = logits.softmax(-1).view(2, 3, tokens, tokens)
    layer = plain
    if known:
        parts = (plain.given(name) for name in ("keys", "values", "queries"))
        layer = LayerFeatures(*parts, layer=0, layers=1, logsumexp=logits.logsumexp(-1).float())
    f = layer.view()
    seen = torch.arange(tokens, 0, -1)
    assert torch.allclose(f.attention_received().double(), a.sum(2) / seen, atol=TOLERANCE)
    for w in (1, 5, tokens, tokens + 3):
        assert torch.allclose(f.window_attention(w).double(), a[:, :, -w:], atol=TOLERANCE)
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)
    for span in (1, 4, 32, 500):
        band = (i - j < span) & (i >= j)
        expected = (a * band).sum(2) / band.sum(0)
        assert torch.allclose(f.local_attention_received(span).double(), expected, atol=TOLERANCE)


@pytest.mark.parametrize("known", [True, False])
def test_soft_capped_logits_give_the_sums_of_the_capped_matrix(known: bool) -> None:
    plain, tokens, cap = synthetic_layer(150, group=3), 150, 0.9
    logits = cap * torch.tanh(causal_logits(plain) / cap)
    logits = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    a = logits.softmax(-1).view(2, 3, tokens, tokens)
    norms = logits.logsumexp(-1).float() if known else None
    parts = [plain.given(name).clone() for name in ("keys", "values", "queries")]
    layer = LayerFeatures(*parts, layer=0, layers=1, softcap=cap, logsumexp=norms)
    f = layer.view()
    assert f.softcap == cap and f.scaling == plain.scaling
    seen = torch.arange(tokens, 0, -1)
    assert torch.allclose(f.window_attention(5).double(), a[:, :, -5:], atol=TOLERANCE)
    assert torch.allclose(f.attention_received().double(), a.sum(2) / seen, atol=TOLERANCE)
    band = a.tril().triu(-3).sum(2) / seen.clamp(max=4)
    assert torch.allclose(f.local_attention_received(4).double(), band, atol=TOLERANCE)
    assert not layer.changed()


def test_extreme_logits_stay_finite_and_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 200, 8, generator=draw) * 40 for _ in range(2))
    layer = LayerFeatures(k, k, q, layer=0, layers=1)
    a = causal_logits(layer).softmax(-1)
    f = layer.view()
    assert torch.allclose(f.attention_received()[:, 0].double(), a.sum(1) / torch.arange(200, 0, -1), atol=1e-4)
    assert f.local_attention_received(16).isfinite().all()


def test_small_blocks_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = synthetic_layer(100).view()
    expected = whole.attention_received(), whole.local_attention_received(9)
    monkeypatch.setattr(attention, "_BLOCK_FLOATS", 1500)
    small = synthetic_layer(100).view()
    assert torch.allclose(small.attention_received(), expected[0], atol=1e-6)
    assert torch.allclose(small.local_attention_received(9), expected[1], atol=1e-6)


def test_no_order_of_asking_changes_a_bit() -> None:
    one, two = synthetic_layer(150).view(), synthetic_layer(150).view()
    ones = one.attention_received(), one.local_attention_received(8), one.window_attention(1)
    two.window_attention(64)
    twos = two.window_attention(1), two.local_attention_received(8), two.attention_received()
    for a, b in zip(ones, reversed(twos), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("factor", [1.0, 1.2])
@pytest.mark.parametrize("width", [8, 4])
def test_unrotating_undoes_a_partial_and_scaled_rotation(factor: float, width: int) -> None:
    angles = torch.arange(40.0)[:, None] * (10.0 ** -torch.arange(width // 2)).repeat(2)
    table = RotaryTable(angles.cos() * factor, angles.sin() * factor)
    x = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(20)
    turned = table.rotate(x, positions)
    assert torch.allclose(table.unrotate(turned, positions), x, atol=1e-5)
    assert torch.equal(turned[..., width:], x[..., width:])
    norms = turned[..., :width].norm(dim=-1) / x[..., :width].norm(dim=-1)
    assert torch.allclose(norms, torch.full_like(norms, factor), atol=1e-5)


def test_rotated_unrotated_keys_are_the_keys() -> None:
    f = synthetic_layer(30).view()
    assert torch.allclose(f.rotate(f.keys_unrotated, f.positions), f.keys, atol=1e-5)
    assert torch.allclose(f.rotate(f.queries_unrotated, f.positions), f.queries, atol=1e-5)
    assert f.rotate(f.keys[:, :1], f.tokens + 511).shape == (2, 1, 16)


def test_a_position_outside_the_table_is_one_sentence() -> None:
    f = synthetic_layer(10).view()
    with pytest.raises(FeatureError, match="Position 522 is outside"):
        f.rotate(f.keys, 522)


@pytest.mark.parametrize(
    "name", ["output_projection", "keys_unrotated", "special_mask", "punctuation_mask", "keep", "protected"]
)
def test_what_is_not_there_is_one_sentence(name: str) -> None:
    with pytest.raises(FeatureError, match=r"needs|reads"):
        getattr(bare().view(), name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_arrays_are_handed_out_in_float32(dtype: torch.dtype) -> None:
    f = synthetic_layer(20, dtype=dtype).view()
    for array in (f.keys, f.values, f.queries, f.output_projection, f.window_attention(4)):
        assert array.dtype == torch.float32


def test_features_cannot_be_set() -> None:
    f = synthetic_layer(4).view()
    with pytest.raises(FeatureError, match="read-only"):
        f.keys = torch.zeros(1)  # type: ignore[misc]
    with pytest.raises(FeatureError, match="read-only"):
        f.memory = 1


def test_reading_the_budget_is_remembered_per_view() -> None:
    layer = synthetic_layer(4)
    one, two = (layer.view(torch.tensor([2, 2])) for _ in range(2))
    assert one.keep.tolist() == [2, 2]
    assert one.read_keep
    assert not two.read_keep


def test_a_counted_write_is_seen_and_named() -> None:
    layer = synthetic_layer(8)
    assert layer.changed() == []
    layer.view().values[0, 0] = 0
    assert layer.changed() == ["values"]
    layer = synthetic_layer(80, dtype=torch.bfloat16)
    layer.view().window_attention(8).zero_()
    assert layer.changed() == ["window_attention(8)"]


@pytest.mark.parametrize("way", ["data", "numpy"])
def test_writes_that_torch_does_not_count_are_seen_in_strict_mode(way: str) -> None:
    layer = synthetic_layer(8, strict=True)
    keys = layer.view().keys
    if way == "data":
        keys.data[0, 0, 0] += 1
    else:
        keys.numpy()[0, 0, 0] += 1
    assert layer.changed() == ["keys"]


def test_inference_tensors_are_watched_by_their_bits() -> None:
    with torch.inference_mode():
        layer = synthetic_layer(8)
        layer.view().keys.mul_(2)
    assert layer.changed() == ["keys"]


def test_changing_the_shape_of_what_is_handed_out_changes_nothing_inside() -> None:
    f = synthetic_layer(8).view()
    f.keys.data = torch.zeros(1)
    assert f.keys.shape == (2, 8, 16)


def test_released_features_are_computed_again_and_inputs_stay_watched() -> None:
    layer = synthetic_layer(70)
    before = layer.view().attention_received()
    layer.release()
    assert torch.equal(layer.view().attention_received(), before)
    layer.view().keys.zero_()
    assert "keys" in layer.changed()


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(2, 4, 8)
    with pytest.raises(FeatureError, match="do not describe one layer"):
        LayerFeatures(x, torch.zeros(2, 5, 8), x, layer=0, layers=1)
    with pytest.raises(FeatureError, match="whole number of query heads"):
        LayerFeatures(x, x, torch.zeros(3, 4, 8), layer=0, layers=1)


@pytest.mark.parametrize("ask", ["window_attention", "local_attention_received"])
def test_an_empty_window_is_refused(ask: str) -> None:
    with pytest.raises(FeatureError, match="at least 1"):
        getattr(synthetic_layer(4).view(), ask)(0)


def test_default_scaling_is_the_root_of_the_head_width() -> None:
    assert bare().scaling == pytest.approx(1 / math.sqrt(8))
