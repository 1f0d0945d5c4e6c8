"""Compressed `generate` with every supported model class: windows, soft-caps and any rotary embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import ORIGINAL, WINDOW, build_model
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime.compress import compress
from cachecraft.runtime.structure import ModelStructure

TOLERANCE = 1e-4
ALLOCATING = """import torch


def score_tokens(f):
    return f.values.norm(dim=-1)


def allocate(scores, total, floor):
    counts = torch.full((len(scores), scores[0].shape[0]), total // (2 * len(scores)))
    counts[0, 0] += 1
    counts[-1, 1] += total - int(counts.sum())
    return counts
"""


def left_padded(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[1] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def answered(model: PreTrainedModel, rows: list[list[int]], **more: Any) -> tuple[Tensor, Tensor]:
    """New tokens (B, N) and their logits (B, N, vocabulary)."""
    batch = left_padded(rows)
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    out = model.generate(**batch, **settings, **more)
    return out.sequences[:, batch["input_ids"].shape[1] :], torch.stack(out.logits, dim=1)


@pytest.fixture
def rows(reference) -> list[list[int]]:
    """All longer than the length at which a longrope model changes its frequencies."""
    return [reference.random_ids(length, length) for length in (40, 60, 35)]


def test_with_everything_kept_a_batch_is_that_of_stock_transformers(family_model, rows) -> None:
    wanted, logits = answered(family_model, rows)
    for hold_back in (0, 8):
        with compress(family_model, policy="keydiff", ratio=0.0, hold_back=hold_back) as run:
            found, own = answered(family_model, rows)
        assert torch.equal(found, wanted)
        torch.testing.assert_close(own, logits, rtol=0, atol=TOLERANCE)
        assert run.last.bytes == run.last.full_bytes


@pytest.mark.parametrize("policy", ["snapkv:window=6", "allocating"])
@pytest.mark.parametrize("hold_back", [0, 8])
def test_rows_get_what_they_get_alone_and_windows_are_left_as_they_are(
    family_model, rows, tmp_path: Path, policy: str, hold_back: int
) -> None:
    if policy == "allocating":
        policy = str(tmp_path / "allocating.py")
        Path(policy).write_text(ALLOCATING)
    structure = ModelStructure.of(family_model)
    with compress(family_model, policy=policy, ratio=0.6, hold_back=hold_back) as run:
        tokens, logits = answered(family_model, rows)
        kept = run.last.kept
        for place, row in enumerate(rows):
            own_tokens, own_logits = answered(family_model, [row])
            assert torch.equal(run.last.kept[:, 0], kept[:, place])
            assert torch.equal(own_tokens[0], tokens[place])
            torch.testing.assert_close(own_logits[0], logits[place], rtol=0, atol=TOLERANCE)
            lead = len(row) - hold_back
            mine = kept[list(structure.compressed), place]
            assert int(mine.sum()) == (int(lead * 0.4 + 1e-9) + hold_back) * mine.numel()
            for layer, window in enumerate(structure.windows):
                if window is not None:
                    assert kept[layer, place].tolist() == [WINDOW - 1] * 2


def test_new_tokens_see_what_was_kept_and_what_windows_show(family_model, reference, tmp_path: Path) -> None:
    file = tmp_path / "by_place.py"
    file.write_text("def score_tokens(f):\n    return (f.positions * 1.7).sin().expand(f.kv_heads, f.tokens)\n")
    ids = reference.random_ids(50, 3)
    with compress(family_model, policy=str(file), ratio=0.5):
        tokens, logits = answered(family_model, [ids])
    structure = ModelStructure.of(family_model)
    place = torch.arange(42)
    gone = place[(place * 1.7).sin().argsort()[:21]]
    kept = torch.ones(structure.layers, 2, 42, dtype=torch.bool)
    for layer in structure.compressed:
        kept[layer, :, gone] = False
    new = [*ids[42:], *tokens[0].tolist()]
    wanted = reference.masked_logits(family_model, ids[:42], new, list(kept))
    torch.testing.assert_close(logits[0], wanted[7:13], rtol=0, atol=TOLERANCE)


def test_later_turns_at_ratio_0_are_those_of_stock_transformers(family_model, reference) -> None:
    ids, more = reference.random_ids(40, 8), reference.random_ids(20, 9)
    first = [*ids, *answered(family_model, [ids])[0][0].tolist()]
    wanted, logits = answered(family_model, [[*first, *more]])
    for hold_back in (0, 8):
        cache = DynamicCache()
        with compress(family_model, policy="keydiff", ratio=0.0, hold_back=hold_back):
            assert answered(family_model, [ids], cache=cache)[0][0].tolist() == first[40:]
            found, own = answered(family_model, [[*first, *more]], cache=cache)
        assert torch.equal(found, wanted)
        torch.testing.assert_close(own, logits, rtol=0, atol=TOLERANCE)


def test_rows_that_the_model_would_rotate_differently_are_refused(reference) -> None:
    model = build_model("phi3-longrope")
    short, long = reference.random_ids(ORIGINAL - 8, 1), reference.random_ids(ORIGINAL + 8, 2)
    with compress(model, policy="knorm", ratio=0.5), torch.no_grad():
        with pytest.raises(ModelError, match="would disturb each other in one batch"):
            model(**left_padded([short, long]))
        cache = DynamicCache()
        model(**left_padded([short]), cache=cache)
        with pytest.raises(ModelError, match="rotates keys otherwise"):
            model(torch.tensor([reference.random_ids(20, 3)]), cache=cache)
