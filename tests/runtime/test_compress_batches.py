"""A row of a left-padded batch gets what it gets alone: the same entries, tokens, logits and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.families import build_model
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from cachecraft.policy.contract import builtin_policies
from cachecraft.runtime.compress import compress

TOLERANCE = 1e-4
NEW = 3
POLICIES = (
    "streaming_llm",
    "knorm",
    "keydiff",
    "snapkv:window=6",
    "h2o",
    "tova",
    "random",
    "frc",
    "observed_attention",
)
PROTECTING = "def protect(f):\n    return 2, 3\n\n\ndef score_tokens(f):\n    return -f.keys.norm(dim=-1)\n"
ALLOCATING = '''import torch


def score_tokens(f):
    return f.values.norm(dim=-1)


def allocate(scores, total, floor):
    """A fifth goes from the first layer to the second, where there is that much."""
    layers, heads = len(scores), scores[0].shape[0]
    counts = torch.full((layers, heads), total // (layers * heads))
    moved = min(int(counts[0, 0]) // 5, scores[0].shape[1] - int(counts[1, 0]))
    counts[0] -= moved
    counts[1] += moved
    return counts
'''


def left_padded(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[1] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def answers(model: PreTrainedModel, batch: dict[str, Tensor], cache: DynamicCache) -> tuple[Tensor, Tensor]:
    """New tokens (B, N) and their logits (B, N, vocabulary)."""
    out = model.generate(
        **batch,
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=1,
        return_dict_in_generate=True,
        output_logits=True,
        cache=cache,
    )
    return out.sequences[:, batch["input_ids"].shape[1] :], torch.stack(out.logits, dim=1)


def entries_of_row(cache: DynamicCache, row: int) -> list[Tensor]:
    """Keys and values of every layer and head of a row."""
    found = []
    for layer in cache.layers:
        counts = layer.lengths.flatten().tolist()
        for side in layer.entries():
            found += side.split(counts)[row * layer.kv_heads : (row + 1) * layer.kv_heads]
    return found


def require_rows_as_alone(model: PreTrainedModel, rows: list[list[int]], **asked: Any) -> None:
    with compress(model, **asked) as run:
        together = DynamicCache()
        tokens, logits = answers(model, left_padded(rows), together)
        kept = run.last.kept
        assert run.last.tokens == tuple(map(len, rows))
        for place, row in enumerate(rows):
            alone = DynamicCache()
            own_tokens, own_logits = answers(model, left_padded([row]), alone)
            assert torch.equal(run.last.kept[:, 0], kept[:, place])
            assert torch.equal(own_tokens[0], tokens[place])
            torch.testing.assert_close(own_logits[0], logits[place], rtol=0, atol=TOLERANCE)
            for mine, shared in zip(entries_of_row(alone, 0), entries_of_row(together, place), strict=True):
                torch.testing.assert_close(mine, shared, rtol=0, atol=TOLERANCE)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    policy=st.sampled_from(POLICIES),
    budget=st.one_of(
        st.sampled_from([0.0, 0.5, 0.88, 0.99]).map(lambda ratio: {"ratio": ratio}),
        st.integers(1, 30).map(lambda keep: {"keep": keep}),
    ),
    hold_back=st.sampled_from([0, 1, 8, 20]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=8)
def test_each_row_of_a_left_padded_batch_gets_what_it_gets_alone(
    reference, tiny_model, lengths: list[int], policy: str, budget: dict[str, Any], hold_back: int, seed: int
) -> None:
    rows = [reference.random_ids(length, seed + place) for place, length in enumerate(lengths)]
    require_rows_as_alone(tiny_model, rows, policy=policy, hold_back=hold_back, **budget)


@pytest.mark.parametrize("policy", builtin_policies())
def test_every_policy_serves_rows_of_all_lengths(reference, tiny_llama, policy: str) -> None:
    rows = [reference.random_ids(length, length) for length in (1, 8, 9, 40, 40)]
    require_rows_as_alone(tiny_llama, rows, policy=policy, ratio=0.7)


@pytest.mark.parametrize("hold_back", [0, 8])
def test_rows_may_divide_their_budget_over_the_layers(reference, tiny_model, tmp_path: Path, hold_back: int) -> None:
    file = tmp_path / "allocating.py"
    file.write_text(ALLOCATING)
    rows = [reference.random_ids(length, length) for length in (31, 4, 50)]
    require_rows_as_alone(tiny_model, rows, policy=str(file), ratio=0.5, hold_back=hold_back)


def test_budgets_and_protection_are_of_the_rows_own_tokens(reference, tiny_llama, tmp_path: Path) -> None:
    file = tmp_path / "protecting.py"
    file.write_text(PROTECTING)
    rows = [reference.random_ids(length, length) for length in (20, 40)]
    cache = DynamicCache()
    with compress(tiny_llama, policy=str(file), ratio=0.5, hold_back=0) as run, torch.no_grad():
        tiny_llama(**left_padded(rows), cache=cache)
    assert run.last.kept.tolist() == [[[10, 10], [20, 20]]] * 2
    for place, row in enumerate(rows):
        dense = reference.dense_layers(tiny_llama, row)
        keys = entries_of_row(cache, place)[:2]
        for own, held in zip(dense[0][0], keys, strict=True):
            torch.testing.assert_close(held[:2], own[:2], rtol=0, atol=1e-5)
            torch.testing.assert_close(held[-3:], own[-3:], rtol=0, atol=1e-5)


def test_true_positions_are_used_where_none_are_given(reference, tiny_model) -> None:
    rows = [reference.random_ids(length, length) for length in (12, 30)]
    batch = left_padded(rows)
    places = (batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    found = []
    for said in ({}, {"position_ids": places}):
        cache = DynamicCache()
        with compress(tiny_model, policy="keydiff", ratio=0.5), torch.no_grad():
            tiny_model(**batch, **said, cache=cache)
            step = tiny_model(torch.tensor([[4], [5]]), cache=cache)  # nothing said of padding: the cache knows
        found.append((entries_of_row(cache, 0), step.logits))
    assert all(torch.equal(a, b) for a, b in zip(*[entries for entries, _ in found], strict=True))
    assert torch.equal(found[0][1], found[1][1])
    with compress(tiny_model, policy="keydiff", ratio=0.5), torch.no_grad():
        alone = tiny_model(torch.tensor([rows[0]]))
        step = tiny_model(torch.tensor([[4]]), cache=alone.cache)
    torch.testing.assert_close(step.logits[0], found[0][1][0], rtol=0, atol=TOLERANCE)


def test_a_later_turn_of_a_padded_batch_is_that_of_its_rows(reference, tiny_model) -> None:
    rows = [reference.random_ids(length, length) for length in (12, 30)]
    more = [reference.random_ids(20, 100 + place) for place in range(2)]
    with compress(tiny_model, policy="knorm", ratio=0.5) as run:
        cache = DynamicCache()
        first, _ = answers(tiny_model, left_padded(rows), cache)
        longer = [[*row, *answer.tolist(), *new] for row, answer, new in zip(rows, first, more, strict=True)]
        tokens, logits = answers(tiny_model, left_padded(longer), cache)
        kept = run.last.kept
        for place in range(2):
            own = DynamicCache()
            answers(tiny_model, left_padded(rows[place : place + 1]), own)
            own_tokens, own_logits = answers(tiny_model, left_padded(longer[place : place + 1]), own)
            assert torch.equal(run.last.kept[:, 0], kept[:, place])
            assert torch.equal(own_tokens[0], tokens[place])
            torch.testing.assert_close(own_logits[0], logits[place], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_batches_run_and_keep_the_same_numbers(reference, dtype: torch.dtype) -> None:
    model = build_model("llama").to(dtype)
    rows = [reference.random_ids(length, length) for length in (7, 30)]
    with compress(model, policy="snapkv:window=6", ratio=0.5) as run:
        _, logits = answers(model, left_padded(rows), DynamicCache())
    assert run.last.kept[0].tolist() == [[7, 7], [19, 19]]
    assert bool(logits.isfinite().all())
    assert run.last.full_bytes == 37 * 2 * 2 * 2 * 16 * 2
