"""Unequal caches in use: each allocation's bytes are really gone, and everything a context can do still works."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cachecraft.answering import answer
from cachecraft.cli_generate import summary
from cachecraft.errors import BudgetError
from cachecraft.evaluation.traces import layer_features, record
from cachecraft.models import LoadedModel
from cachecraft.policy.contract import load_policy
from cachecraft.policy.sequence import decide_sequence
from cachecraft.runtime.compress import compress
from cachecraft.runtime.context import load, prefill
from cachecraft.runtime.eviction import Budgeted
from cachecraft.runtime.structure import ModelStructure

TEXT = "One of the special magic numbers for hidden-key is: 1234567. The grass is green. The sky is blue. " * 2
KEEP = 20


@pytest.fixture(scope="module")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("budgets") / "heads.json"
    path.write_text('{"format": "cachecraft-budgets-1", "budgets": [[1, 7], [9, 3]]}')
    return str(path)


@pytest.mark.parametrize("allocation", ["pyramid", "reversed_pyramid", "adaptive", "global", "file"])
def test_a_ragged_context_is_smaller_and_answers_like_its_saved_self(
    tiny_llama, tiny_tokenizer, budgets: str, tmp_path: Path, allocation: str
) -> None:
    given = budgets if allocation == "file" else allocation
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, policy="vnorm", keep=KEEP, allocation=given)
    assert int(context.kept.sum()) == KEEP * context.kept.numel()
    assert len(context.kept.unique()) > 1
    if allocation == "file":
        assert context.kept.tolist() == [[4, 28], [36, 12]]
    assert context.stored_bytes == context.bytes == context.full_bytes * KEEP // context.tokens
    context.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors", tiny_llama, tiny_tokenizer)
    assert context.ask("why?", max_new_tokens=6) == again.ask("why?", max_new_tokens=6)


@pytest.mark.parametrize("allocation", ["adaptive", "global", "file"])
def test_rows_of_a_batch_are_divided_as_they_are_alone(tiny_llama, budgets: str, allocation: str) -> None:
    given = budgets if allocation == "file" else allocation
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(4, 200, (count,), generator=generator).tolist() for count in (40, 26)]
    padded = torch.tensor([rows[0], [1] * 14 + rows[1]])
    mask = torch.tensor([[1] * 40, [0] * 14 + [1] * 26])
    plain = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    with compress(tiny_llama, policy="vnorm", ratio=0.5, allocation=given) as made:
        together = tiny_llama.generate(input_ids=padded, attention_mask=mask, **plain)[:, 40:]
        kept = made.last.kept
        for number, row in enumerate(rows):
            alone = tiny_llama.generate(input_ids=torch.tensor([row]), **plain)[:, len(row) :]
            assert torch.equal(together[number], alone[0])
            assert torch.equal(kept[:, number], made.last.kept[:, 0])
    assert int(kept[:, 0].sum()) == 4 * (16 + 8) and int(kept[:, 1].sum()) == 4 * (9 + 8)


@pytest.mark.parametrize(("policy", "allocation"), [("h2o", "global"), ("criticalkv(h2o)", "adaptive")])
def test_a_context_keeps_what_an_evaluation_measures(tiny_llama, tiny_tokenizer, policy: str, allocation: str) -> None:
    structure = ModelStructure.of(tiny_llama)
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, policy=policy, keep=KEEP, allocation=allocation)
    trace = record(structure, tiny_tokenizer("<|im_start|>user\n" + TEXT, add_special_tokens=False)["input_ids"])
    (decided,) = decide_sequence(
        load_policy(policy, allocation=allocation), lambda: layer_features(structure, tiny_tokenizer, trace), [KEEP]
    )
    for decision, dense, layer in zip(decided, trace.layers, context._cache.compressed, strict=True):
        assert torch.equal(layer.entries()[0], dense.keys[decision.mask])


def test_budgets_of_another_model_are_refused_before_reading(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"format": "cachecraft-budgets-1", "budgets": [1, 2, 3]}')
    with pytest.raises(BudgetError, match="for 3 layers, but this model has 2"):
        prefill(tiny_llama, tiny_tokenizer, TEXT, keep=KEEP, allocation=str(path))
    with pytest.raises(BudgetError, match="for 3 layers"), compress(tiny_llama, keep=KEEP, allocation=str(path)):
        pass


def test_a_division_that_gives_way_says_so_wherever_it_is_used(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, policy="snapkv", ratio=0.1, allocation="pyramid")
    assert "kept alike" in context.allocation_note
    context.save(tmp_path / "c.safetensors")
    assert load(tmp_path / "c.safetensors", tiny_llama, tiny_tokenizer).allocation_note == context.allocation_note
    before = load_file(tmp_path / "c.safetensors")
    with safe_open(tmp_path / "c.safetensors", framework="pt") as file:
        told = {key: value for key, value in file.metadata().items() if key != "allocation_note"}
    save_file(before, tmp_path / "old.safetensors", metadata=told)
    assert load(tmp_path / "old.safetensors", tiny_llama, tiny_tokenizer).allocation_note == ""
    loaded = LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "r0", "float32", "cpu")
    asked = Budgeted.of("snapkv", 0.1, None, None, "pyramid")
    for text in (TEXT, None):
        answered = answer(loaded, TEXT, text, lambda _: None, asked, max_new_tokens=2)
        assert "kept alike" in summary(answered, "snapkv")[-1]
