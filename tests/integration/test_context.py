"""A compressed context on the default model: it remembers, shrinks to its budget, and survives saving."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachecraft.runtime.context import load, prefill

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("every_core")]

SENTENCES = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
FACT = "One of the special magic numbers for brave-otter is: 7315482.\n"
TEXT = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it.\n"
    + SENTENCES * 11
    + FACT
    + SENTENCES * 12
)
QUESTION = "What is the special magic number for brave-otter mentioned in the provided text?"
PREFIX = " The special magic number for brave-otter mentioned in the provided text is"


def test_a_fact_is_found_twice_in_half_the_bytes_and_again_after_saving(smollm2, tmp_path: Path) -> None:
    context = prefill(smollm2.model, smollm2.tokenizer, TEXT, policy="keydiff", ratio=0.5)
    assert 500 < context.tokens < 800
    assert context.bytes <= 0.51 * context.full_bytes
    first = context.ask(QUESTION, answer_prefix=PREFIX, max_new_tokens=24)
    assert "7315482" in first
    other = context.ask("What colour is the sky?", max_new_tokens=24)
    assert other
    assert context.ask(QUESTION, answer_prefix=PREFIX, max_new_tokens=24) == first
    context.save(tmp_path / "otter.safetensors")
    again = load(tmp_path / "otter.safetensors", smollm2.model, smollm2.tokenizer)
    assert again.ask("What colour is the sky?", max_new_tokens=24) == other
    assert "".join(again.stream(QUESTION, answer_prefix=PREFIX, max_new_tokens=24)) == first
