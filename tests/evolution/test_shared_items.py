"""Items in files: every process sees the arrays and the heavy features that were shared, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.features import LayerFeatures
from cachecraft.sandbox import SandboxError, SharedItem, share


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_item_is_what_was_shared_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    layers = [synthetic_layer(70, layer=index, dtype=dtype, seed=index) for index in range(2)]
    item = share(tmp_path / "a.item", layers, warm=lambda f: (f.window_attention(8), f.keys_unrotated))
    assert item.shape == (2, 2, 70)
    for layer, mapped in zip(layers, item.layers(), strict=True):
        for name in ("keys", "values", "queries", "output_projection", "special_mask", "punctuation_mask"):
            assert torch.equal(layer.given(name), mapped.given(name))
            assert layer.given(name).stride() == mapped.given(name).stride()
            assert mapped.given(name).data_ptr() % 64 == 0
        assert (mapped.layer, mapped.seed, mapped.scaling) == (layer.layer, layer.seed, layer.scaling)
        view = mapped.view()
        assert torch.equal(view.window_attention(8), layer.view().window_attention(8))
        assert mapped.heavy == []
        assert torch.equal(view.rotate(view.keys, 3), layer.view().rotate(layer.view().keys, 3))


def test_strides_survive_since_a_product_may_depend_on_them(tmp_path: Path) -> None:
    plain = synthetic_layer(30)
    crosswise = plain.given("keys").transpose(1, 2).contiguous().transpose(1, 2)
    layer = LayerFeatures(crosswise, plain.given("values"), plain.given("queries"), layer=0, layers=1)
    mapped = next(share(tmp_path / "a.item", [layer]).layers())
    assert mapped.given("keys").stride() == crosswise.stride() != plain.given("keys").stride()
    assert torch.equal(mapped.given("keys"), crosswise)


def test_layers_of_two_shapes_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="one model"):
        share(tmp_path / "a.item", [synthetic_layer(10), synthetic_layer(11)])
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays"
    (tmp_path / "b.item").write_bytes(b"something else entirely")
    with pytest.raises(SandboxError, match=r"b\.item cannot be read"):
        SharedItem.open(tmp_path / "b.item")
    with pytest.raises(SandboxError, match=r"c\.item cannot be read \(No such file"):
        SharedItem.open(tmp_path / "c.item")


def test_items_of_one_model_share_their_output_projections(items: dict[str, SharedItem]) -> None:
    first, second = items["one"], items["two"]
    assert first.files[1] == second.files[1]
    assert first.files[0] != second.files[0]


def test_the_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    share(tmp_path / "a.item", [synthetic_layer(10, seed=0)], weights=tmp_path / "weights")
    share(tmp_path / "b.item", [synthetic_layer(10, seed=0)], weights=tmp_path / "weights")
    with pytest.raises(SandboxError, match="another model's"):
        share(tmp_path / "c.item", [synthetic_layer(10, seed=1)], weights=tmp_path / "weights")
    assert not (tmp_path / "c.item").exists()
