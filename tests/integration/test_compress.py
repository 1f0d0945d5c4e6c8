"""Compressed `generate` on the default model: rows of a padded batch are what they are alone, and later turns work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import cachecraft

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("every_core")]

NOTES = "The harbour master keeps the tide tables in the red cabinet. The pilot boat leaves at six. "
QUESTION = "Where are the tide tables?"


def chat(loaded: cachecraft.LoadedModel, texts: list[str]) -> dict[str, Any]:
    rendered = [
        loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        for text in texts
    ]
    batch = loaded.tokenizer(rendered, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def answered(loaded: cachecraft.LoadedModel, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, DynamicCache]:
    out = loaded.model.generate(  # type: ignore[operator]
        **batch, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    return out.sequences[:, batch["input_ids"].shape[1] :], torch.stack(out.logits, dim=1), out.cache


@pytest.mark.parametrize("policy", ["keydiff", "snapkv"])
def test_a_row_of_a_padded_batch_is_what_it_is_alone(smollm2: cachecraft.LoadedModel, policy: str) -> None:
    texts = [NOTES * 5 + QUESTION, "Hi.", NOTES * 2 + "When does the pilot boat leave?"]
    with cachecraft.compress(smollm2.model, policy=policy, ratio=0.5) as run:
        tokens, logits, cache = answered(smollm2, chat(smollm2, texts))
        together = run.last
        assert together is not None
        for row, text in enumerate(texts):
            own_tokens, own_logits, own_cache = answered(smollm2, chat(smollm2, [text]))
            alone = run.last
            assert alone is not None
            assert alone.tokens == together.tokens[row : row + 1]
            assert torch.equal(alone.kept[:, 0], together.kept[:, row])
            steps = own_tokens.shape[1]
            assert own_tokens[0].tolist() == tokens[row, :steps].tolist()
            torch.testing.assert_close(own_logits[0], logits[row, :steps], rtol=0, atol=1e-4)
            for mine, shared in zip(own_cache.layers, cache.layers, strict=True):
                counts = shared.lengths.flatten().tolist()
                heads = shared.entries()[0].split(counts)[row * shared.kv_heads : (row + 1) * shared.kv_heads]
                for own, held in zip(mine.entries()[0].split(mine.lengths[0].tolist()), heads, strict=True):
                    prompt = int(alone.kept[0, 0, 0])  # the answer's entries follow the prompt's
                    torch.testing.assert_close(own[:prompt], held[:prompt], rtol=0, atol=1e-4)


def test_a_second_turn_remembers_the_first(smollm2: cachecraft.LoadedModel) -> None:
    cache = DynamicCache()
    with cachecraft.compress(smollm2.model, policy="keydiff", ratio=0.5) as run:
        first = chat(smollm2, [NOTES * 8 + "Say yes if you have read this."])
        told = smollm2.model.generate(**first, max_new_tokens=8, do_sample=False, cache=cache)  # type: ignore[operator]
        seen = cache.get_seq_length()
        more = smollm2.tokenizer(
            f"<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
            add_special_tokens=False,
            return_tensors="pt",
        )["input_ids"]
        whole = torch.cat((told, more), dim=1)
        out = smollm2.model.generate(  # type: ignore[operator]
            whole, attention_mask=torch.ones_like(whole), max_new_tokens=24, do_sample=False, cache=cache
        )
    assert run.last is not None
    assert run.last.tokens == (whole.shape[1],)
    assert int(run.last.kept.max()) < seen
    assert "red cabinet" in smollm2.tokenizer.decode(out[0, whole.shape[1] :])


def test_generate_answers_from_the_command_line(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(NOTES * 10)
    command = [sys.executable, "-m", "cachecraft.cli", "generate", "--policy", "keydiff", "--ratio", "0.75"]
    done = subprocess.run(
        [*command, "--file", str(book), "--max-new-tokens", "24", QUESTION], capture_output=True, text=True, check=True
    )
    assert "red cabinet" in done.stdout
    assert "(25 % kept)" in done.stderr and "tokens a second" in done.stderr
