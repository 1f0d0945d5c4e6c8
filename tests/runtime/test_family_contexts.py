"""Compressed contexts of every supported model class: asked, measured, saved and loaded."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.families import FAMILIES, ORIGINAL, WIDE_WINDOW, WINDOW, build_model, model_of
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime.context import load, prefill
from cachecraft.runtime.structure import ModelStructure

TEXT = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = "Is the sky blue?"
SLIDING = {"qwen2-sliding": [1], "gemma2": [0], "gemma3": [0, 2]}
EACH = 16 * 2 * 4  # bytes of one entry of one head in float32

# Gives one head of one layer more than the others, so that a context's layers and heads differ.
UNEVEN = '''"""Heads of different lengths."""
import torch


def score_tokens(f):
    return -f.keys.norm(dim=-1)


def allocate(scores, total, floor):
    counts = torch.full((len(scores), scores[0].shape[0]), total // (2 * len(scores)))
    counts[0, 0] += 3
    counts[-1, 1] += total - int(counts.sum())
    return counts
'''


def stock_answer(model: PreTrainedModel, tokenizer, most: int) -> str:
    message = [{"role": "user", "content": f"{TEXT}\n{QUESTION}"}]
    whole = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(whole, add_special_tokens=False, return_tensors="pt")
    assert ids["input_ids"].shape[1] + most <= WIDE_WINDOW
    out = model.generate(**ids, max_new_tokens=most, do_sample=False)[0, ids["input_ids"].shape[1] :]
    return tokenizer.decode(out, skip_special_tokens=True)


def test_with_everything_kept_the_answer_is_that_of_stock_transformers(family_model, tiny_tokenizer) -> None:
    context = prefill(family_model, tiny_tokenizer, TEXT, policy="snapkv:window=8", ratio=0.0)
    assert context.ask(QUESTION, max_new_tokens=10) == stock_answer(family_model, tiny_tokenizer, 10)
    assert context.bytes == context.full_bytes


@pytest.mark.parametrize("policy", ["observed_attention", "uneven"])
def test_a_saved_context_of_any_class_comes_back_with_the_same_answer(
    family_model, tiny_tokenizer, tmp_path: Path, policy: str
) -> None:
    if policy == "uneven":
        policy = str(tmp_path / "uneven.py")
        Path(policy).write_text(UNEVEN)
    context = prefill(family_model, tiny_tokenizer, TEXT, policy=policy, ratio=0.6)
    first = context.ask(QUESTION, max_new_tokens=6)
    context.save(tmp_path / "context.safetensors")
    again = load(tmp_path / "context.safetensors", family_model, tiny_tokenizer)
    assert torch.equal(again.kept, context.kept)
    for name in ("tokens", "bytes", "full_bytes", "window_bytes", "compressed_layers", "note"):
        assert getattr(again, name) == getattr(context, name)
    for same in (context, again):
        assert same.ask(QUESTION, max_new_tokens=6) == first


@pytest.mark.parametrize("family", FAMILIES)
def test_the_budget_is_for_the_layers_that_are_compressed_and_all_bytes_are_counted(tiny_tokenizer, family) -> None:
    model = model_of(family)
    context = prefill(model, tiny_tokenizer, TEXT, ratio=0.75)
    keep, sliding = int(context.tokens * 0.25 + 1e-9), SLIDING.get(family, [])
    layers = model.config.num_hidden_layers
    for layer in range(layers):
        assert context.kept[layer].tolist() == [WINDOW - 1 if layer in sliding else keep] * 2
    compressed = layers - len(sliding)
    assert list(context.compressed_layers) == [layer for layer in range(layers) if layer not in sliding]
    assert context.window_bytes == len(sliding) * 2 * (WINDOW - 1) * EACH
    assert context.bytes == context.window_bytes + compressed * 2 * keep * EACH
    assert context.full_bytes == context.window_bytes + compressed * 2 * context.tokens * EACH
    assert context.note == (
        f"{compressed} of {layers} layers are compressed; the others attend to the last {WINDOW} tokens only and stay "
        "as they are (their bytes are counted on both sides)."
        if sliding
        else ""
    )


def test_a_context_is_refused_by_a_model_whose_attention_is_set_otherwise(tiny_tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "context.safetensors"
    prefill(build_model("gemma2"), tiny_tokenizer, TEXT, ratio=0.5).save(path)
    for change in ({"sliding_window": 9}, {"attn_logit_softcapping": None}, {"query_pre_attn_scalar": 16}):
        with pytest.raises(ModelError, match="made with another model"):
            load(path, build_model("gemma2", **change), tiny_tokenizer)


def test_where_every_layer_slides_the_window_is_the_context(tiny_tokenizer) -> None:
    model = model_of("mistral-sliding")
    assert ModelStructure.of(model).context == WIDE_WINDOW
    context = prefill(model, tiny_tokenizer, TEXT, ratio=0.5)
    assert context.compressed_layers == (0, 1)
    with pytest.raises(ModelError, match=f"exceed the model's context of {WIDE_WINDOW}"):
        context.ask(QUESTION, max_new_tokens=WIDE_WINDOW)
    with pytest.raises(ModelError, match="the sliding window of all its layers, beyond which it forgets by itself"):
        prefill(model, tiny_tokenizer, TEXT * 3, ratio=0.5)


def test_a_window_as_long_as_the_models_context_never_acts(tiny_tokenizer) -> None:
    model = build_model("gemma3", sliding_window=4096)
    assert ModelStructure.of(model).compressed == (0, 1, 2)
    assert prefill(model, tiny_tokenizer, TEXT, ratio=0.0).ask(QUESTION, max_new_tokens=10) == stock_answer(
        model, tiny_tokenizer, 10
    )


def test_dynamic_scaling_ends_where_cached_keys_would_no_longer_fit(tiny_tokenizer) -> None:
    model = build_model("llama-dynamic", max_position_embeddings=96)
    context = prefill(model, tiny_tokenizer, TEXT, ratio=0.0)
    assert context.ask(QUESTION, max_new_tokens=10) == stock_answer(model, tiny_tokenizer, 10)
    with pytest.raises(ModelError, match="its dynamic rotary scaling would no longer fit the keys that are cached"):
        prefill(model, tiny_tokenizer, TEXT * 3, ratio=0.5)
    with pytest.raises(ModelError, match="context of 96"):
        context.ask(QUESTION, max_new_tokens=90)


def test_a_text_may_not_cross_the_length_at_which_longrope_changes(tiny_tokenizer) -> None:
    model = model_of("phi3-longrope")
    short = prefill(model, tiny_tokenizer, "The sky.", ratio=0.0)
    assert short.tokens < ORIGINAL
    assert isinstance(short.ask("Why?", max_new_tokens=1), str)
    with pytest.raises(ModelError, match="rotates keys otherwise in texts of more than 32 tokens"):
        short.ask(QUESTION, max_new_tokens=64)


def test_yarn_reaches_as_far_as_it_was_stretched() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    for most in (128, 512):
        model = build_model("llama", rope_parameters=copy.deepcopy(rope), max_position_embeddings=most)
        assert ModelStructure.of(model).context == 512
