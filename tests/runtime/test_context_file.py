"""Saved contexts: they come back as they were, or are refused in one sentence."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from cachecraft.errors import ModelError
from cachecraft.runtime import context_file
from cachecraft.runtime.context import load, prefill
from cachecraft.runtime.context_file import model_fingerprint

TEXT = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 3
QUESTIONS = ["What is green?", "Is the sky blue?"]
UNEVEN = '''"""Heads of different lengths."""
import torch


def score_tokens(f):
    return -f.keys.norm(dim=-1)


def allocate(scores, total, floor):
    counts = torch.full((len(scores), scores[0].shape[0]), total // 4)
    counts[0, 0] += 3
    counts[0, 1] -= 3
    counts[1, 1] += total - int(counts.sum())
    return counts
'''


@pytest.fixture(params=["keydiff", "uneven"])
def context(request, tiny_model, tiny_tokenizer, tmp_path: Path):
    policy = request.param
    if policy == "uneven":
        policy = str(tmp_path / "uneven.py")
        Path(policy).write_text(UNEVEN)
    return prefill(tiny_model, tiny_tokenizer, TEXT, policy=policy, ratio=0.5)


def test_a_saved_context_comes_back_with_the_same_answers(context, tiny_model, tiny_tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "context.safetensors"
    context.save(path)
    again = load(path, tiny_model, tiny_tokenizer)
    for name in ("policy", "policy_id", "forced", "tokens", "bytes", "full_bytes"):
        assert getattr(again, name) == getattr(context, name)
    assert torch.equal(again.kept, context.kept)
    for question in QUESTIONS:
        assert again.ask(question, max_new_tokens=20) == context.ask(question, max_new_tokens=20)
    assert [file.name for file in path.parent.iterdir()] == ["context.safetensors"]


def test_the_file_says_what_it_was_made_with(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    prefill(tiny_llama, tiny_tokenizer, TEXT, policy="snapkv:window=8", ratio=0.5).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "cachecraft-context-1"
    assert metadata["model_class"] == "LlamaForCausalLM"
    assert metadata["policy"] == "snapkv:window=8"
    assert len(metadata["policy_id"]) == len(metadata["fingerprint"]) == 64
    assert metadata["cachecraft"]


def test_a_context_of_another_model_is_refused(tiny_llama, tiny_qwen2, tiny_tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.5).save(path)
    with pytest.raises(ModelError, match="made with another model \\(LlamaForCausalLM"):
        load(path, tiny_qwen2, tiny_tokenizer)
    tuned = copy.deepcopy(tiny_llama)
    with torch.no_grad():
        tuned.model.layers[1].mlp.up_proj.weight += 1e-4
    with pytest.raises(ModelError, match="made with another model"):
        load(path, tuned, tiny_tokenizer)
    with pytest.raises(ModelError, match="made in float32, but the model is in bfloat16"):
        load(path, copy.deepcopy(tiny_llama).to(torch.bfloat16), tiny_tokenizer)


def test_the_same_model_from_another_place_is_accepted(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    tiny_llama.save_pretrained(tmp_path / "model")
    moved = type(tiny_llama).from_pretrained(tmp_path / "model")
    assert model_fingerprint(moved) == model_fingerprint(tiny_llama)
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.5)
    context.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors", moved, tiny_tokenizer)
    assert again.ask(QUESTIONS[0], max_new_tokens=10) == context.ask(QUESTIONS[0], max_new_tokens=10)


def test_another_chat_template_is_refused(tiny_llama, tiny_tokenizer, plain_tokenizer, tmp_path: Path) -> None:
    prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.5).save(tmp_path / "c.safetensors")
    with pytest.raises(ModelError, match="another tokenizer or chat template"):
        load(tmp_path / "c.safetensors", tiny_llama, plain_tokenizer)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(tiny_llama, tiny_tokenizer, tmp_path: Path, size: int) -> None:
    path = tmp_path / "c.safetensors"
    prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.5).save(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match="is damaged or no CacheCraft context"):
        load(path, tiny_llama, tiny_tokenizer)


def test_foreign_and_missing_files_are_refused(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    foreign, text = tmp_path / "foreign.safetensors", tmp_path / "notes.txt"
    save_file({"weights": torch.zeros(3)}, foreign)
    text.write_text("not a cache at all " * 20)
    with pytest.raises(ModelError, match="is not a context that this version"):
        load(foreign, tiny_llama, tiny_tokenizer)
    with pytest.raises(ModelError, match="is damaged or no CacheCraft context"):
        load(text, tiny_llama, tiny_tokenizer)
    with pytest.raises(ModelError, match="There is no file"):
        load(tmp_path / "nowhere", tiny_llama, tiny_tokenizer)
    with pytest.raises(ModelError):
        load(tmp_path, tiny_llama, tiny_tokenizer)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file_and_no_half_one(
    tiny_llama, tiny_tokenizer, tmp_path: Path, monkeypatch, error
) -> None:
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.5)
    path = tmp_path / "c.safetensors"
    context.save(path)
    before = path.read_bytes()

    def fail(tensors, partial, metadata):
        Path(partial).write_bytes(b"half")
        raise error

    monkeypatch.setattr(context_file, "save_file", fail)
    expected = ModelError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        context.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]
