"""Every supported model class and rotary embedding against stock transformers and attention written out in full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.families import FAMILIES, WINDOW, build_model, model_of
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from cachecraft.policy.features import LayerFeatures
from cachecraft.runtime import compat
from cachecraft.runtime.attention import attending
from cachecraft.runtime.cache import CompressedCache
from cachecraft.runtime.features import SequenceFeatures, observe_prefill
from cachecraft.runtime.gather import compressed_cache, in_window
from cachecraft.runtime.structure import ModelStructure

TOKENS = 70  # longer than the narrow windows and than where longrope changes, shorter than the wide window
HEADS, KV_HEADS, WIDTH = 4, 2, 16
SLIDING = {"qwen2-sliding": [1], "gemma2": [0], "gemma3": [0, 2]}  # the layers that are not compressed
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 0.06, torch.float16: 0.008}
BY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
BY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def compressed_layers(family: str, model: PreTrainedModel) -> list[int]:
    return [layer for layer in range(model.config.num_hidden_layers) if layer not in SLIDING.get(family, [])]


def attended(reference: SimpleNamespace, model: PreTrainedModel, ids: list[int]) -> dict[int, SimpleNamespace]:
    """What each layer of the stock model really attends with, and the (H, T, T) weights of that, written out."""
    seen: dict[int, SimpleNamespace] = {}

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Any:
        group, tokens = query.shape[1] // key.shape[1], query.shape[2]
        logits = query[0].double() @ key[0].double().repeat_interleave(group, 0).transpose(1, 2) * more["scaling"]
        if more.get("softcap") is not None:
            assert logits.abs().max() > more["softcap"], "the cap must act to be tested"
            logits = more["softcap"] * torch.tanh(logits / more["softcap"])
        away = torch.arange(tokens).unsqueeze(1) - torch.arange(tokens)
        hidden = (away < 0) | (away >= (more.get("sliding_window") or tokens))
        weights = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        seen[module.layer_idx] = SimpleNamespace(queries=query[0], keys=key[0], values=value[0], weights=weights)
        output = weights @ value[0].double().repeat_interleave(group, 0)
        return output.to(query.dtype).transpose(0, 1).unsqueeze(0).contiguous(), None

    with reference.attending_by(model, attention), torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    return seen


def before_rotation(model: PreTrainedModel, ids: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Each layer's queries (H, T, D) and keys (G, T, D) as its projections and norms give them."""
    found: dict[int, dict[str, Tensor]] = {}
    hooks = []
    for index, layer in enumerate(model.model.layers):
        found[index] = {}
        for name in ("q_proj", "k_proj", "q_norm", "k_norm", "qkv_proj"):  # a norm comes after its projection
            if hasattr(layer.self_attn, name):
                keep = lambda _, given, out, own=found[index], name=name: own.update({name[0] + name[1:2]: out})  # noqa: E731
                hooks.append(getattr(layer.self_attn, name).register_forward_hook(keep))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    pairs = {}
    for index, own in found.items():
        fused = own.get("qk")
        query = own["q_"] if fused is None else fused[..., : HEADS * WIDTH]
        key = own["k_"] if fused is None else fused[..., HEADS * WIDTH : (HEADS + KV_HEADS) * WIDTH]
        pairs[index] = tuple(
            each.reshape(len(ids), -1, WIDTH) if each.shape[1] == len(ids) else each[0].transpose(0, 1)
            for each in (query, key)
        )
    return {index: (query.transpose(0, 1), key.transpose(0, 1)) for index, (query, key) in pairs.items()}


def features_of(model: PreTrainedModel, tokenizer: Any, ids: list[int]) -> dict[int, LayerFeatures]:
    structure = ModelStructure.of(model)
    sequence = SequenceFeatures.of(structure, tokenizer, ids)
    found: dict[int, LayerFeatures] = {}

    def see(call: Any) -> None:
        if call.layer in structure.compressed:
            found[call.layer] = sequence.layer(call.layer, *call.alone())

    observe_prefill(structure, ids, see)
    return found


@BY_FAMILY
def test_the_observed_pass_computes_what_the_stock_model_computes(reference: SimpleNamespace, family: str) -> None:
    model = model_of(family)
    for tokens in (1, WINDOW, WINDOW + 1, 90 if family == "mistral-sliding" else 300):
        ids = torch.tensor([reference.random_ids(tokens, tokens)])
        with torch.no_grad():
            wanted = model(input_ids=ids, use_cache=False).logits
            with attending(model):
                hidden = compat.hidden_states(model, ids, torch.arange(tokens).unsqueeze(0), None)
            torch.testing.assert_close(compat.logits(model, hidden), wanted, rtol=0, atol=2e-5)


@BY_FAMILY
def test_policies_see_what_the_model_really_attends_with(reference, tiny_tokenizer, family: str) -> None:
    model, ids = model_of(family), reference.random_ids(TOKENS, 1)
    features = features_of(model, tiny_tokenizer, ids)
    assert list(features) == compressed_layers(family, model)
    seen_by = torch.arange(TOKENS, 0, -1)
    for layer, truth in attended(reference, model, ids).items():
        if layer in features:
            f = features[layer].view()
            for name in ("queries", "keys", "values"):
                torch.testing.assert_close(getattr(f, name), getattr(truth, name), rtol=0, atol=1e-5)
            weights = truth.weights.float().view(KV_HEADS, HEADS // KV_HEADS, TOKENS, TOKENS)
            torch.testing.assert_close(f.window_attention(9), weights[:, :, -9:], rtol=0, atol=1e-5)
            torch.testing.assert_close(f.attention_received(), weights.sum(dim=2) / seen_by, rtol=0, atol=1e-5)
            band = (weights * torch.ones(TOKENS, TOKENS).triu(-3)).sum(dim=2) / seen_by.clamp(max=4)
            torch.testing.assert_close(f.local_attention_received(4), band, rtol=0, atol=1e-5)


@BY_DTYPE
@BY_FAMILY
def test_the_rotation_is_undone_and_done_again_as_the_model_does_it(reference, tiny_tokenizer, family, dtype) -> None:
    model, ids = model_of(family, dtype), reference.random_ids(TOKENS, 2)
    plain = before_rotation(model, ids)
    tolerance = DTYPES[dtype]
    for layer, features in features_of(model, tiny_tokenizer, ids).items():
        f = features.view()
        for before, name in zip(plain[layer], ("queries", "keys"), strict=True):
            unrotated = getattr(f, f"{name}_unrotated")
            torch.testing.assert_close(unrotated, before.float(), rtol=0, atol=tolerance)
            rotated = f.rotate(before, f.positions)
            torch.testing.assert_close(rotated, getattr(f, name), rtol=0, atol=tolerance)
            torch.testing.assert_close(f.rotate(unrotated, f.positions), getattr(f, name), rtol=0, atol=1e-5)


def cut(model: PreTrainedModel, dense: list[tuple[Tensor, Tensor]]) -> tuple[list[Any], tuple[int | None, ...]]:
    windows = ModelStructure.of(model).windows
    held = [
        pair if window is None else tuple(in_window(side, window) for side in pair)
        for pair, window in zip(dense, windows, strict=True)
    ]
    return held, windows


def uneven_cache(
    reference: SimpleNamespace, family: str, model: PreTrainedModel, ids: list[int], rows: int
) -> tuple[CompressedCache, list[Tensor]]:
    """Rows of different random selections, and for each layer the (B, G, T) that new tokens may still see."""
    generator = torch.Generator().manual_seed(rows)
    masks = []
    for layer in range(model.config.num_hidden_layers):
        counts = torch.randint(1, len(ids) + 1, (rows, KV_HEADS), generator=generator).tolist()
        drawn = torch.stack([reference.random_mask(KV_HEADS, len(ids), each, generator) for each in counts])
        masks.append(drawn if layer in compressed_layers(family, model) else torch.ones_like(drawn))
    held, windows = cut(model, reference.dense_layers(model, ids))
    kept = [mask[:, :, -pair[0].shape[1] :] for mask, pair in zip(masks, held, strict=True)]
    return compressed_cache(held, kept, seen=len(ids), windows=windows), masks


@BY_DTYPE
@BY_FAMILY
def test_decoding_ragged_rows_equals_a_dense_pass_that_hides_what_was_evicted(reference, family, dtype) -> None:
    model = model_of(family, dtype)
    ids, new = reference.random_ids(TOKENS, 3), reference.random_ids(11, 4)
    cache, masks = uneven_cache(reference, family, model, ids, rows=2)
    found = reference.compressed_logits(model, cache, new, [5, 1, 4, 1])
    scale = 4 if dtype != torch.float32 else 1  # rounding adds up over the layers
    for row in range(2):
        wanted = reference.masked_logits(model, ids, new, [mask[row] for mask in masks]).float()
        torch.testing.assert_close(found[row], wanted, rtol=0, atol=scale * DTYPES[dtype])


@BY_FAMILY
def test_generate_goes_on_over_a_compressed_cache(reference, family: str) -> None:
    model = model_of(family)
    ids, new = reference.random_ids(TOKENS, 5), reference.random_ids(6, 6)
    cache, masks = uneven_cache(reference, family, model, ids, rows=1)
    whole = torch.tensor([ids + new])
    settings = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, compat.cache_keyword(model): cache}
    with attending(model, cache=cache):
        out = model.generate(whole, attention_mask=torch.ones_like(whole), **settings)[0, len(ids) + 6 :].tolist()
    wanted: list[int] = []
    for _ in range(9):
        logits = reference.masked_logits(model, ids, new + wanted, [mask[0] for mask in masks])
        wanted.append(int(logits[-1].argmax()))
    assert out == wanted


@pytest.mark.parametrize("family", SLIDING)
def test_a_sliding_layer_holds_what_the_stock_cache_holds(reference, family: str) -> None:
    model, structure = model_of(family), ModelStructure.of(model_of(family))
    for tokens in (3, WINDOW - 1, WINDOW, 30):
        ids, new = reference.random_ids(tokens, 7), reference.random_ids(12, 8)
        stock = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=torch.tensor([ids + new]), **{compat.cache_keyword(model): stock})
        held, windows = cut(model, reference.dense_layers(model, ids))
        everything = [torch.ones(1, *keys.shape[:2], dtype=torch.bool) for keys, _ in held]
        cache = compressed_cache(held, everything, seen=tokens, windows=windows).fork(3)
        reference.compressed_logits(model, cache, new, [4, *[1] * 8])
        for index, layer in enumerate(cache.compressed):
            keys, values = (side.view(KV_HEADS, -1, WIDTH) for side in layer.entries())
            torch.testing.assert_close(keys, stock.layers[index].keys[0], rtol=0, atol=1e-5)
            torch.testing.assert_close(values, stock.layers[index].values[0], rtol=0, atol=1e-5)
            assert layer.bytes == layer.full_bytes == 2 * keys.numel() * keys.element_size()
            if index not in structure.compressed:
                assert int(layer.lengths.max()) == min(tokens + 12, WINDOW - 1)


@pytest.mark.parametrize("family", ["llama-dynamic", "phi3-longrope", "gemma3"])
def test_asking_for_far_positions_leaves_the_model_as_it_is(reference, family: str) -> None:
    model = build_model(family, max_position_embeddings=100)
    ids = torch.tensor([reference.random_ids(20, 9)])
    before = model(input_ids=ids, use_cache=False).logits
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    table = next(iter(ModelStructure.of(model).rotary(150).values()))
    assert table.cos.shape[0] == 662
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
