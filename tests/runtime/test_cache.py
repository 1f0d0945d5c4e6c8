"""The compressed cache against a dense pass that hides the same entries with masks."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime import compat
from cachecraft.runtime.attention import attending
from cachecraft.runtime.cache import CompressedCache, CompressedLayer
from cachecraft.runtime.gather import compressed_cache

TOLERANCE = 1e-5
LAYERS, HEADS = 2, 2
SHAPES = ("uniform", "by layer", "by row", "by head")


def drawn_masks(reference: SimpleNamespace, shape: str, rows: int, tokens: int, seed: int) -> list[Tensor]:
    """For each layer (B, G, T): random entries, in numbers that differ as `shape` says."""
    generator = torch.Generator().manual_seed(seed)

    def count() -> int:
        return int(torch.randint(1, tokens + 1, (), generator=generator))

    everywhere, by_row = count(), [count() for _ in range(rows)]
    masks = []
    for _ in range(LAYERS):
        by_layer = count()
        each = []
        for row in range(rows):
            counts = {
                "uniform": [everywhere] * HEADS,
                "by layer": [by_layer] * HEADS,
                "by row": [by_row[row]] * HEADS,
                "by head": [count() for _ in range(HEADS)],
            }[shape]
            each.append(reference.random_mask(HEADS, tokens, counts, generator))
        masks.append(torch.stack(each))
    return masks


@pytest.mark.parametrize("shape", SHAPES)
@given(
    rows=st.integers(1, 3),
    tokens=st.integers(1, 40),
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=6)
def test_decoding_equals_a_dense_pass_that_hides_the_evicted_entries(
    reference: SimpleNamespace,
    tiny_model: PreTrainedModel,
    shape: str,
    rows: int,
    tokens: int,
    steps: list[int],
    seed: int,
) -> None:
    ids, new = reference.random_ids(tokens, seed), reference.random_ids(sum(steps), seed + 1)
    masks = drawn_masks(reference, shape, rows, tokens, seed)
    cache = compressed_cache(reference.dense_layers(tiny_model, ids), masks, seen=tokens)
    found = reference.compressed_logits(tiny_model, cache, new, steps)
    for row in range(rows):
        wanted = reference.masked_logits(tiny_model, ids, new, [mask[row] for mask in masks])
        torch.testing.assert_close(found[row], wanted, rtol=0, atol=TOLERANCE)


def test_rows_of_a_batch_give_exactly_what_they_give_alone(
    reference: SimpleNamespace, tiny_model: PreTrainedModel
) -> None:
    ids, new = reference.random_ids(30, 0), reference.random_ids(6, 1)
    dense = reference.dense_layers(tiny_model, ids)
    masks = drawn_masks(reference, "by head", 3, 30, 2)
    together = reference.compressed_logits(tiny_model, compressed_cache(dense, masks, seen=30), new)
    for row in range(3):
        alone = compressed_cache(dense, [mask[row : row + 1] for mask in masks], seen=30)
        torch.testing.assert_close(
            reference.compressed_logits(tiny_model, alone, new)[0], together[row], rtol=0, atol=1e-5
        )


def test_new_tokens_continue_at_the_true_position(reference: SimpleNamespace, tiny_model: PreTrainedModel) -> None:
    ids = reference.random_ids(25, 3)
    masks = drawn_masks(reference, "by head", 1, 25, 4)
    cache = compressed_cache(reference.dense_layers(tiny_model, ids), masks, seen=25)
    assert cache.get_seq_length() == 25
    reference.compressed_logits(tiny_model, cache, [5, 6, 7])
    assert cache.get_seq_length() == 28


@pytest.mark.parametrize("shape", SHAPES)
def test_generate_continues_at_the_true_position_and_sees_only_what_was_kept(
    reference: SimpleNamespace, tiny_model: PreTrainedModel, shape: str
) -> None:
    ids, new = reference.random_ids(40, 5), reference.random_ids(7, 6)
    masks = drawn_masks(reference, shape, 1, 40, 7)
    cache = compressed_cache(reference.dense_layers(tiny_model, ids), masks, seen=40)
    whole = torch.tensor([ids + new])
    keyword = compat.cache_keyword(tiny_model)
    with attending(tiny_model, cache=cache):
        out = tiny_model.generate(
            whole,
            attention_mask=torch.ones_like(whole),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            **{keyword: cache},
        )[0, 47:].tolist()
    wanted: list[int] = []
    for _ in range(8):
        logits = reference.masked_logits(tiny_model, ids, new + wanted, [mask[0] for mask in masks])
        wanted.append(int(logits[-1].argmax()))
    assert out == wanted
    assert cache.get_seq_length() == 40 + 7 + 7


def test_entries_stay_in_text_order_whatever_the_scores_were(reference: SimpleNamespace, tiny_llama) -> None:
    ids = reference.random_ids(20, 8)
    dense = reference.dense_layers(tiny_llama, ids)
    masks = drawn_masks(reference, "by head", 2, 20, 9)
    cache = compressed_cache(dense, masks, seen=20)
    for layer, (keys, values), mask in zip(cache.compressed, dense, masks, strict=True):
        stored_keys, stored_values = layer.entries()
        wanted = [(row, head) for row in range(2) for head in range(HEADS)]
        assert torch.equal(stored_keys, torch.cat([keys[head][mask[row, head]] for row, head in wanted]))
        assert torch.equal(stored_values, torch.cat([values[head][mask[row, head]] for row, head in wanted]))


def test_unequal_heads_take_no_more_memory_than_their_entries(reference: SimpleNamespace, tiny_llama) -> None:
    dense = reference.dense_layers(tiny_llama, reference.random_ids(50, 10))
    generator = torch.Generator().manual_seed(0)
    masks = [reference.random_mask(HEADS, 50, counts, generator).unsqueeze(0) for counts in ([49, 1], [20, 3])]
    cache = compressed_cache(dense, masks, seen=50)
    storages = {}
    for layer in cache.compressed:
        for block in layer._blocks:
            for side in (block.keys, block.values):
                storages[side.untyped_storage().data_ptr()] = side.untyped_storage().nbytes()
    assert sum(storages.values()) == cache.bytes == (49 + 1 + 20 + 3) * 2 * 16 * 4
    assert cache.lengths.tolist() == [[[49, 1]], [[20, 3]]]


def test_a_fork_can_be_used_without_changing_its_origin(reference: SimpleNamespace, tiny_model) -> None:
    ids = reference.random_ids(30, 11)
    cache = compressed_cache(
        reference.dense_layers(tiny_model, ids), drawn_masks(reference, "by head", 1, 30, 12), seen=30
    )
    before = [side.clone() for layer in cache.compressed for side in layer.entries()]
    first = reference.compressed_logits(tiny_model, cache.fork(4), [9, 8, 7, 6])
    assert cache.get_seq_length() == 30
    after = [side for layer in cache.compressed for side in layer.entries()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(reference.compressed_logits(tiny_model, cache.fork(0), [9, 8, 7, 6]), first)


def test_an_empty_cache_is_not_falsy() -> None:
    assert bool(CompressedCache([])) is True
    layer = CompressedLayer(torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor([[1, 1]]), 1)
    assert bool(CompressedCache([layer])) is True


def test_a_head_without_entries_is_refused() -> None:
    with pytest.raises(ModelError, match="at least one entry"):
        CompressedLayer(torch.zeros(3, 4), torch.zeros(3, 4), torch.tensor([[3, 0]]), 5)
    with pytest.raises(ModelError, match="do not fit 3 keys and 2 values"):
        CompressedLayer(torch.zeros(3, 4), torch.zeros(2, 4), torch.tensor([[2, 1]]), 5)


def test_outside_of_attending_a_compressed_cache_refuses_new_tokens(reference: SimpleNamespace, tiny_model) -> None:
    ids = reference.random_ids(10, 13)
    masks = drawn_masks(reference, "uniform", 1, 10, 14)
    cache = compressed_cache(reference.dense_layers(tiny_model, ids), masks, seen=10)
    arguments = {compat.cache_keyword(tiny_model): cache, "position_ids": torch.tensor([[10, 11]])}
    with pytest.raises(ModelError, match="inside `with attending"):
        tiny_model(input_ids=torch.tensor([[4, 5]]), **arguments)
    with pytest.raises(ModelError, match="inside `with attending"):
        tiny_model(input_ids=torch.tensor([[4, 5]]), attention_mask=torch.zeros(1, 1, 2, 12), **arguments)
    assert cache.get_seq_length() == 10


def test_beam_search_and_cutting_are_refused(reference: SimpleNamespace, tiny_llama) -> None:
    dense = reference.dense_layers(tiny_llama, reference.random_ids(10, 15))
    cache = compressed_cache(dense, drawn_masks(reference, "uniform", 1, 10, 16), seen=10)
    for refused in (lambda: cache.crop(3), lambda: cache.reorder_cache(torch.tensor([0])), lambda: cache.reset()):
        with pytest.raises(ModelError, match="cannot be cut, reordered or moved"):
            refused()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_the_dense_pass(reference: SimpleNamespace, tiny_llama, dtype: torch.dtype) -> None:
    model = copy.deepcopy(tiny_llama).to(dtype)
    ids, new = reference.random_ids(30, 17), reference.random_ids(5, 18)
    masks = drawn_masks(reference, "by head", 1, 30, 19)
    cache = compressed_cache(reference.dense_layers(model, ids), masks, seen=30)
    assert cache.bytes == int(sum(mask.sum() for mask in masks)) * 2 * 16 * 2
    found = reference.compressed_logits(model, cache, new)[0]
    wanted = reference.masked_logits(model, ids, new, [mask[0] for mask in masks]).float()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.3 if dtype == torch.bfloat16 else 0.05)


def test_room_for_new_tokens_is_in_proportion_to_what_is_held() -> None:
    entries = torch.randn(400 + 40, 8)
    layer = CompressedLayer(entries, entries.clone(), torch.tensor([[400, 40]]), 400)
    assert layer.stored_bytes == layer.bytes
    most = 0.0
    for _ in range(70):
        layer.update(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
        most = max(most, (layer.stored_bytes - layer.bytes) / layer.bytes_per_entry)
    assert layer.lengths.tolist() == [[470, 110]]
    assert 0 < most <= 470 // 8 + 16
