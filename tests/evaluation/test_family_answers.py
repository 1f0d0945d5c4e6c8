"""Evaluation of every supported model class: traces, selections and answers are those of each class's own attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.families import FAMILIES, WINDOW, build_model, model_of
from tests.runtime.conftest import masked_logits, random_ids
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft import api
from cachecraft.evaluation.answers import answer_ids
from cachecraft.evaluation.cells import Budget, make_cells
from cachecraft.evaluation.forced import likelihoods, queries_of
from cachecraft.evaluation.grid import evaluate
from cachecraft.evaluation.hindsight import hindsight_orders
from cachecraft.evaluation.selections import Selections, Subject
from cachecraft.evaluation.settings import Settings
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import read_trace, record, write_trace
from cachecraft.models import LoadedModel
from cachecraft.reporting.summary import summarise
from cachecraft.reporting.tables import notes
from cachecraft.runtime.structure import ModelStructure

pytestmark = pytest.mark.usefixtures("brief_answers")
TOKENS, MOST = 60, 8
PROMPT = [11, 57, 23, 90]
SLIDING = {"qwen2-sliding": [1], "gemma2": [0], "gemma3": [0, 2]}
ENTRY = 2 * 16 * 2 * 4  # bytes of one entry of both heads in float32


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
    model, ids = model_of(family), random_ids(TOKENS, 1)
    structure = ModelStructure.of(model)
    subject = Subject(structure, plain_tokenizer, "tiny", "r0", "float32")
    trace = record(structure, ids)
    cells = make_cells(["knorm", "snapkv:window=8"], [Budget(ratio=0.5), Budget(keep=9)], references=["full"])
    selections = Selections(subject, trace, cells, Stopwatch())
    masks = [selections.masks(cell) for cell in cells]
    target = [30, 40, 50, *random_ids(2 * WINDOW, 5)]  # the window moves past the context and past the prompt
    found = answer_ids(structure, trace, masks, PROMPT, MOST)
    likely_of_all = likelihoods(structure, trace, masks, PROMPT, target)
    whole = torch.ones(2, TOKENS, dtype=torch.bool)  # of a sliding layer the reference hides what its window does
    masks = [[mask if structure.windows[layer] is None else whole for layer, mask in enumerate(each)] for each in masks]
    assert found == [greedy(model, ids, each, structure.stop_ids) for each in masks]
    for each, likely in zip(masks, likely_of_all, strict=True):
        scores = masked_logits(model, ids, [*PROMPT, *target[:-1]], each)[-len(target) :].log_softmax(dim=-1)
        assert likely.mean_logprob == pytest.approx(float(scores[range(len(target)), target].mean()), abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_holds_of_a_sliding_layer_what_its_window_shows(family, plain_tokenizer, tmp_path: Path) -> None:
    model, ids = model_of(family), random_ids(TOKENS, 2)
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
    model, ids = model_of(family), random_ids(TOKENS, 3)
    structure = ModelStructure.of(model)
    trace = record(structure, ids)
    orders = hindsight_orders(structure, trace, queries_of(structure, trace, PROMPT, [30, 40]))
    assert tuple(orders) == structure.compressed
    for order in orders.values():
        assert order.sort(dim=-1).values.tolist() == [list(range(TOKENS))] * 2


def test_a_run_says_which_layers_were_not_compressed_and_counts_their_bytes(tiny_tokenizer, tmp_path: Path) -> None:
    structure = ModelStructure.of(build_model("gemma3", sliding_window=400))
    subject = Subject(structure, tiny_tokenizer, "tiny", "r0", "float32")
    asked = Settings(("knorm",), (Budget(ratio=0.75),), ("ruler:niah_single_1",), length=360, samples=1)
    store, ids = evaluate(subject, asked, tmp_path / "run")
    results = list(store.results(ids))
    store.close()
    for result in results:
        kept = result.tokens if result.label == "full" else result.tokens // 4
        assert result.kept_bytes == ENTRY * (kept + 2 * result.tokens)
        assert result.full_bytes == ENTRY * 3 * result.tokens
    lines = notes(summarise(results, "answer"), store.settings)
    assert structure.note in lines
    assert structure.note.startswith("1 of 3 layers are compressed; the others attend to the last 400 tokens only")


@pytest.mark.parametrize("family", SLIDING)
def test_a_run_measures_models_whose_layers_slide(family: str, tiny_tokenizer, tmp_path: Path) -> None:
    found = api.evaluate(
        LoadedModel(model_of(family), tiny_tokenizer, "tiny", "r0", "float32", "cpu"),
        policies=["streaming_llm", "knorm"],
        ratios=[0.5],
        tasks=["ruler:niah_single_1"],
        length=360,
        samples=1,
        references=["full", "hindsight"],
        scoring=["answer", "likelihood", "fidelity"],
        run=tmp_path / "run",
    )
    assert {(each.label, each.scoring) for each in found.results} == {
        (label, scoring)
        for label in ("streaming_llm", "knorm", "full", "hindsight")
        for scoring in ("answer", "likelihood", "fidelity")
    }
    layers = 3 if family == "gemma3" else 2
    windows = ENTRY * (WINDOW - 1) * len(SLIDING[family])
    for each in found.results:
        assert each.state == "ok"
        kept = each.tokens if each.label == "full" else each.tokens // 2
        assert each.kept_bytes == windows + ENTRY * kept * (layers - len(SLIDING[family]))
        assert each.detail["retention"]["segments"]["needle"]["kept"] <= 1
        if each.label == "full":
            assert each.detail["retention"]["whole"] == {"needle": 1, "answer": 1}
            assert each.scoring != "fidelity" or (each.value, each.detail["kl"]) == (1, pytest.approx(0, abs=1e-6))
