"""Generating from compressed prompts with every supported model class: sliding windows, soft-caps, rotary scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import FAMILIES, ORIGINAL, WIDE_WINDOW, WINDOW, build_model, model_of
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime.compress import compress
from cachecraft.runtime.context import prefill
from cachecraft.runtime.structure import ModelStructure

NEW = 6
SETTINGS: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
LOGITS = {"return_dict_in_generate": True, "output_logits": True}
SLIDING = {"qwen2-sliding": [1], "gemma2": [0], "gemma3": [0, 2]}
ENTRY = 16 * 2 * 4  # bytes of one entry of one head in float32
BY_PLACE = '''"""Keeps the same places of every sequence, whatever the model."""
import torch


def score_tokens(f):
    return (f.positions * 1.7).sin().expand(f.kv_heads, f.tokens)
'''
ALLOCATE = """

def allocate(scores, total, floor):
    counts = torch.full((len(scores), scores[0].shape[0]), total // (2 * len(scores)))
    moved = min(3, int(counts[0, 0]) - 1, scores[0].shape[1] - int(counts[0, 0]))
    counts[0, 0] -= moved
    counts[-1, 1] += moved
    return counts
"""


@pytest.fixture
def by_place(tmp_path: Path) -> Callable[[bool], str]:
    """A policy that keeps the same places of all layers, or gives one head more than the others."""

    def made(allocating: bool = False) -> str:
        path = tmp_path / "by_place.py"
        path.write_text(BY_PLACE + ALLOCATE * allocating)
        return str(path)

    return made


def left_padded(rows: Sequence[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[1] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def generated(model: PreTrainedModel, rows: Sequence[list[int]], **settings: Any) -> Tensor:
    """The new tokens after each row, (B, N)."""
    batch = left_padded(rows)
    return model.generate(**batch, **(SETTINGS | settings))[:, batch["input_ids"].shape[1] :]


def answered(model: PreTrainedModel, rows: Sequence[list[int]], **settings: Any) -> tuple[Tensor, Tensor]:
    """The same with their logits, (B, N, vocabulary)."""
    batch = left_padded(rows)
    out = model.generate(**batch, **(SETTINGS | LOGITS | settings))
    return out.sequences[:, batch["input_ids"].shape[1] :], torch.stack(out.logits, dim=1)


def held_places(layer: Any, dense: Tensor, row: int) -> Tensor:
    """(G, T) bool: which of a row's dense keys, (G, T, D), a layer still holds."""
    mine = layer.entries()[0].split(layer.lengths.flatten().tolist())[row * 2 : row * 2 + 2]
    near = [(own[:, None] - held[None]).abs().amax(-1).min(-1).values for own, held in zip(dense, mine, strict=True)]
    return torch.stack(near) < 1e-4


def test_at_ratio_0_a_batch_gets_what_it_gets_without_us_in_two_turns(reference, family_model) -> None:
    rows = [reference.random_ids(length, length) for length in (20, 9)]
    if family_model.config.model_type == "phi3":  # longrope rotates all rows as the longest one wants
        rows = [reference.random_ids(length, length) for length in (40, 44)]
    wanted = answered(family_model, rows)
    more = [
        [*row, *answer, *reference.random_ids(15, 50 + len(row))]
        for row, answer in zip(rows, wanted[0].tolist(), strict=True)
    ]
    later = answered(family_model, more)
    for hold_back in (0, 8):
        cache = DynamicCache()
        with compress(family_model, policy="keydiff", ratio=0.0, hold_back=hold_back) as run:
            turns = [answered(family_model, each, cache=cache) for each in (rows, more)]
            assert run.last.bytes == run.last.full_bytes
        for (tokens, logits), (own, stock) in zip(turns, (wanted, later), strict=True):
            assert torch.equal(tokens, own)
            torch.testing.assert_close(logits, stock, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("hold_back", "allocating"), [(0, True), (1, False), (12, True)])
@pytest.mark.parametrize("family", FAMILIES)
def test_new_tokens_see_what_was_kept_and_what_their_windows_show(
    reference, family, by_place, hold_back: int, allocating: bool
) -> None:
    model, sliding = model_of(family), SLIDING.get(family, [])
    rows = [
        reference.random_ids(length, length) for length in (60, 46)
    ]  # what is read first is longer than where longrope changes
    cache = DynamicCache()
    with compress(model, policy=by_place(allocating), ratio=0.6, hold_back=hold_back):
        tokens, logits = answered(model, rows, cache=cache)
    for place, row in enumerate(rows):
        lead, new = len(row) - hold_back, tokens[place].tolist()
        dense = reference.dense_layers(model, row[:lead])
        masks = [
            torch.ones(2, lead, dtype=torch.bool)
            if layer in sliding
            else held_places(cache.layers[layer], dense[layer][0], place)
            for layer in range(len(dense))
        ]
        kept = sum(int(mask.sum()) for layer, mask in enumerate(masks) if layer not in sliding)
        assert kept == 2 * int(lead * 0.4 + 1e-9) * (len(dense) - len(sliding))
        wanted = reference.masked_logits(model, row[:lead], [*row[lead:], *new], masks)
        first = 0 if hold_back else 1  # without a held-back token the first answer token is that of the full cache
        torch.testing.assert_close(
            logits[place, first:], wanted[max(hold_back - 1, 0) :][: NEW - first], rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("family", SLIDING)
def test_a_later_turn_sees_through_its_windows_what_the_first_one_read(reference, family, by_place) -> None:
    model, policy = model_of(family), by_place(True)
    ids = reference.random_ids(40, 15)
    cache = DynamicCache()
    with compress(model, policy=policy, ratio=0.0):
        first = [*ids, *generated(model, [ids], cache=cache)[0].tolist()]
    more = [*first, *reference.random_ids(29, 16)]
    with compress(model, policy=policy, ratio=0.5) as run:
        tokens, logits = answered(model, [more], cache=cache)
    sequence, total = [*more, *tokens[0].tolist()], len(more) + NEW
    start, split = len(first) - 1, len(more) - 8  # the answer's last token is read with the second turn
    dense = reference.dense_layers(model, sequence[:split])
    visible = torch.ones(total, total, dtype=torch.bool).tril().repeat(len(dense), 2, 1, 1)
    for layer, (keys, _) in enumerate(dense):
        if layer in SLIDING[family]:
            assert run.last.kept[layer, 0].max() == WINDOW - 1
        else:
            own = held_places(cache.layers[layer], keys, 0)
            assert bool(own[:, :start].all()) and not bool(own.all())
            visible[layer, :, split:, :split] &= own[:, None, :]
    wanted = reference.visible_logits(model, sequence, list(visible))
    torch.testing.assert_close(logits[0], wanted[len(more) - 1 : -1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("policy", ["observed_attention", "snapkv:window=8"])
def test_it_keeps_what_a_compressed_context_of_the_same_tokens_keeps(family_model, plain_tokenizer, policy) -> None:
    text = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    context = prefill(family_model, plain_tokenizer, text, policy=policy, ratio=0.7)
    cache = DynamicCache()
    with compress(family_model, policy=policy, ratio=0.7, hold_back=0) as run, torch.no_grad():
        family_model(**plain_tokenizer(text, return_tensors="pt", return_token_type_ids=False), cache=cache)
    for own, wanted in zip(cache.layers, context._cache.compressed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own.entries(), wanted.entries(), strict=True))
    assert (run.last.bytes, run.last.full_bytes) == (context.bytes, context.full_bytes)
    assert torch.equal(run.last.kept[:, 0], context.kept)


@pytest.mark.parametrize("family", SLIDING)
@pytest.mark.parametrize("hold_back", [0, 3, 20])
def test_windows_hold_their_newest_entries_and_all_bytes_are_counted(reference, family, by_place, hold_back) -> None:
    model, sliding = model_of(family), SLIDING[family]
    with compress(model, policy=by_place(), keep=5, hold_back=hold_back) as run, torch.no_grad():
        model(**left_padded([reference.random_ids(length, length) for length in (30, 24)]))
    for layer, kept in enumerate(run.last.kept):
        if layer in sliding:
            assert kept.tolist() == [[WINDOW - 1] * 2] * 2
        else:
            assert kept.sum() <= 2 * 2 * (5 * (len(run.last.kept) - len(sliding)) + hold_back)
    assert run.last.bytes == ENTRY * int(run.last.kept.sum())
    compressed = len(run.last.kept) - len(sliding)
    assert run.last.full_bytes == ENTRY * 2 * (54 * compressed + 2 * (WINDOW - 1) * len(sliding))


def test_a_model_that_asks_for_an_old_kind_of_cache_takes_the_callers_in_every_turn(reference) -> None:
    model, ids = build_model("gemma2"), reference.random_ids(20, 1)
    model.generation_config.cache_implementation = "hybrid"  # as in the files of Gemma 2
    cache = DynamicCache()  # which is falsy while it is empty
    with compress(model, policy="knorm", ratio=0.5) as run:
        answer = generated(model, [ids], cache=cache)[0].tolist()
        generated(model, [[*ids, *answer, *reference.random_ids(20, 2)]], cache=cache)
    assert run.last.tokens == (40 + NEW,)


@pytest.mark.parametrize("window", [1, 2])
def test_the_smallest_windows_work(reference, by_place, window: int) -> None:
    model = build_model("gemma3", sliding_window=window)
    rows = [reference.random_ids(length, length) for length in (20, 9)]
    for hold_back in (0, 8):
        with compress(model, policy=by_place(True), ratio=0.0, hold_back=hold_back) as run:
            tokens, logits = answered(model, rows)
        assert run.last.kept[0].unique().tolist() == [window - 1]
        for place, row in enumerate(rows):  # one dense pass; the stock cache does not know a window of one token
            nothing_evicted = [torch.ones(2, len(row), dtype=torch.bool)] * 3
            wanted = reference.masked_logits(model, row, tokens[place].tolist(), nothing_evicted)
            torch.testing.assert_close(logits[place, 1:], wanted[:-1], rtol=0, atol=2e-5)


def test_where_every_layer_slides_generating_ends_with_the_window(reference) -> None:
    model = build_model("mistral-sliding")
    with compress(model, policy="knorm", ratio=0.5) as run:
        generated(model, [reference.random_ids(WIDE_WINDOW - NEW, 1)])
        assert run.last.kept[:, 0].unique().tolist() == [(WIDE_WINDOW - NEW - 8) // 2 + 8]
        with pytest.raises(ModelError, match="the sliding window of all its layers, beyond which it forgets by itself"):
            generated(model, [reference.random_ids(WIDE_WINDOW - NEW + 2, 1)])


def test_rows_that_longrope_would_rotate_otherwise_alone_are_refused(reference) -> None:
    model = build_model("phi3-longrope")
    rows = [reference.random_ids(length, length) for length in (ORIGINAL, ORIGINAL + 10)]
    with compress(model, policy="knorm", ratio=0.5), torch.no_grad():
        with pytest.raises(ModelError, match="rotates keys otherwise in texts of more than 32 tokens"):
            generated(model, rows)
        with pytest.raises(ModelError, match="would disturb each other in one batch"):
            model(**left_padded(rows))
        for row in rows:
            generated(model, [row], max_new_tokens=1)
        cache = DynamicCache()
        model(**left_padded(rows[:1]), cache=cache)
        with pytest.raises(ModelError, match="rotates keys otherwise"):
            model(torch.tensor([reference.random_ids(20, 3)]), cache=cache)


def test_a_model_that_attends_otherwise_than_its_settings_say_is_refused(reference) -> None:
    model = build_model("gemma2")
    ModelStructure.of(model)
    model.model.layers[0].self_attn.scaling = 0.1
    with compress(model, policy="knorm", ratio=0.5):
        generated(model, [reference.random_ids(20, 1)], max_new_tokens=1)  # which our reading of the settings sees
        model.model.layers[0].self_attn.attn_logit_softcapping = 9.0
        with pytest.raises(ModelError, match=r"Layer 0 of Gemma2ForCausalLM attends with"):
            generated(model, [reference.random_ids(20, 1)], max_new_tokens=1)
