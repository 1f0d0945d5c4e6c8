"""Evaluation of every supported model class: traces, selections and answers are those of each class's own attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.families import FAMILIES, WIDE_WINDOW, WINDOW, build_model
from tests.runtime.conftest import masked_logits, random_ids
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.evaluation.answers import answer_ids
from cachecraft.evaluation.cells import Budget, make_cells
from cachecraft.evaluation.forced import likelihoods, queries_of
from cachecraft.evaluation.grid import evaluate
from cachecraft.evaluation.hindsight import hindsight_orders
from cachecraft.evaluation.selections import Selections, Subject
from cachecraft.evaluation.settings import Settings
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import read_trace, record, write_trace
from cachecraft.reporting.summary import summarise
from cachecraft.reporting.tables import notes
from cachecraft.runtime.structure import ModelStructure

TOKENS, MOST = 60, 8
PROMPT = [11, 57, 23, 90]
SLIDING = {"qwen2-sliding": [1], "gemma2": [0], "gemma3": [0, 2]}
ENTRY = 2 * 16 * 2 * 4  # bytes of one entry of both heads in float32


def within_its_windows(family: str) -> PreTrainedModel:
    """A model whose windows never act on the tests' texts and whose logits are not capped."""
    changes: dict[str, object] = {"sliding_window": WIDE_WINDOW} if family in SLIDING else {}
    return build_model(family, **changes | ({"attn_logit_softcapping": None} if family == "gemma2" else {}))


def greedy(model: PreTrainedModel, ids: list[int], masks: list[Tensor], stops: frozenset[int]) -> list[int]:
    answer: list[int] = []
    while len(answer) < MOST:
        token = int(masked_logits(model, ids, PROMPT + answer, masks)[-1].argmax())
        if token in stops:
            break
        answer.append(token)
    return answer


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_and_likelihoods_are_those_of_a_dense_pass_that_hides_what_was_evicted(family, plain_tokenizer) -> None:
    model, ids = within_its_windows(family), random_ids(TOKENS, 1)
    structure = ModelStructure.of(model)
    subject = Subject(structure, plain_tokenizer, "tiny", "r0", "float32")
    trace = record(structure, ids)
    cells = make_cells(["knorm", "snapkv:window=8"], [Budget(ratio=0.5), Budget(keep=9)], references=["full"])
    selections = Selections(subject, trace, cells, Stopwatch())
    masks = [selections.masks(cell) for cell in cells]
    found = answer_ids(structure, trace, masks, PROMPT, MOST)
    assert found == [greedy(model, ids, each, structure.stop_ids) for each in masks]
    target = [30, 40, 50]
    for each, likely in zip(masks, likelihoods(structure, trace, masks, PROMPT, target), strict=True):
        scores = masked_logits(model, ids, [*PROMPT, *target[:-1]], each)[-3:].log_softmax(dim=-1)
        assert likely.mean_logprob == pytest.approx(float(scores[range(3), target].mean()), abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_holds_of_a_sliding_layer_what_its_window_shows(family, plain_tokenizer, tmp_path: Path) -> None:
    model, ids = build_model(family), random_ids(TOKENS, 2)
    structure = ModelStructure.of(model)
    trace = record(structure, ids)
    sliding = SLIDING.get(family, [])
    for index, layer in enumerate(trace.layers):
        assert layer.keys.shape == (2, WINDOW - 1 if index in sliding else TOKENS, 16)
        assert layer.queries.shape == (4, 0 if index in sliding else TOKENS, 16)
        assert layer.keys.untyped_storage().nbytes() == layer.keys.numel() * 4
    assert trace.full_bytes == ENTRY * sum(layer.keys.shape[1] for layer in trace.layers)
    write_trace(tmp_path / "trace", trace)
    again = read_trace(tmp_path / "trace")
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in trace.tensors().items())
    subject = Subject(structure, plain_tokenizer, "tiny", "r0", "float32")
    cells = make_cells(["keydiff"], [Budget(keep=9)], references=["full", "hindsight"])
    selections = Selections(subject, trace, cells, Stopwatch())
    compressed = len(trace.layers) - len(sliding)
    for cell in cells:
        if cell.label != "hindsight":
            kept = 9 if cell.policy else TOKENS
            assert selections.bytes_kept(cell) == ENTRY * (compressed * kept + len(sliding) * (WINDOW - 1))
            assert [int(mask.sum(dim=-1).max()) for mask in selections.masks(cell)] == [
                WINDOW - 1 if layer in sliding else kept for layer in range(len(trace.layers))
            ]
    assert selections.bytes_full == trace.full_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_hindsight_orders_the_compressed_layers_only(family: str) -> None:
    model, ids = within_its_windows(family), random_ids(TOKENS, 3)
    structure = ModelStructure.of(model)
    trace = record(structure, ids)
    orders = hindsight_orders(structure, trace, queries_of(structure, trace, PROMPT, [30, 40]))
    assert tuple(orders) == structure.compressed
    for order in orders.values():
        assert order.sort(dim=-1).values.tolist() == [list(range(TOKENS))] * 2


def test_a_run_says_which_layers_were_not_compressed_and_counts_their_bytes(tiny_tokenizer, tmp_path: Path) -> None:
    structure = ModelStructure.of(build_model("gemma3", sliding_window=700))
    subject = Subject(structure, tiny_tokenizer, "tiny", "r0", "float32")
    asked = Settings(("knorm",), (Budget(ratio=0.75),), ("ruler:niah_single_1",), length=600, samples=1)
    store, ids = evaluate(subject, asked, tmp_path / "run")
    results = list(store.results(ids))
    store.close()
    for result in results:
        kept = result.tokens if result.label == "full" else result.tokens // 4
        assert result.kept_bytes == ENTRY * (kept + 2 * result.tokens)
        assert result.full_bytes == ENTRY * 3 * result.tokens
    lines = notes(summarise(results, "answer"), store.settings)
    assert structure.note in lines
    assert structure.note.startswith("1 of 3 layers are compressed; the others attend to the last 700 tokens only")


def test_what_the_packed_batch_cannot_attend_to_yet_is_refused() -> None:
    everything = record(structure := ModelStructure.of(build_model("gemma2")), random_ids(TOKENS, 4))
    with pytest.raises(ModelError, match="Gemma2ForCausalLM soft-caps its logits, which no evaluation can do yet"):
        answer_ids(structure, everything, [everything.everything()], PROMPT, MOST)
    everything = record(structure := ModelStructure.of(build_model("gemma3")), random_ids(TOKENS, 4))
    with pytest.raises(ModelError, match="72 tokens are more than the 8 of the model's sliding windows"):
        answer_ids(structure, everything, [everything.everything()], PROMPT, MOST)
