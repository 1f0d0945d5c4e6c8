"""Answers, likelihoods and fidelity of packed candidates against each candidate run alone by plain means.

The plain way: one forward pass of stock transformers over context and continuation together, whose attention is told
for each layer and head which entries of the context the continuation may still see.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import build_tokenizer
from tests.families import VOCABULARY, build_model
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.evaluation import answers, forced
from cachecraft.evaluation.answers import Question, answer_ids
from cachecraft.evaluation.endings import Ending
from cachecraft.evaluation.forced import fidelities, likelihoods, queries_of
from cachecraft.evaluation.traces import record
from cachecraft.runtime import compat
from cachecraft.runtime.packed import PackedCache
from cachecraft.runtime.structure import ModelStructure

CONTEXT, KV_HEADS, LAYERS = 37, 2, 2
PROMPT = [11, 57, 23, 90]
Selection = list[Tensor]


def stops_at(model: PreTrainedModel, *stops: int) -> ModelStructure:
    """The structure, with other stop tokens."""
    known = ModelStructure.of(model)
    return ModelStructure(**{**vars(known), "stop_ids": frozenset(stops)})


def random_context(seed: int) -> list[int]:
    return torch.randint(4, VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(seed)).tolist()


def random_selection(seed: int, *, equal: bool = False) -> Selection:
    """Different counts for every layer and head, or one count for all."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, CONTEXT + 1, (1,) if equal else (LAYERS, KV_HEADS), generator=generator)
    order = torch.rand(LAYERS, KV_HEADS, CONTEXT, generator=generator).argsort(dim=-1).argsort(dim=-1)
    return list(order < counts.expand(LAYERS, KV_HEADS).unsqueeze(-1))


def everything() -> Selection:
    return [torch.ones(KV_HEADS, CONTEXT, dtype=torch.bool)] * LAYERS


def plain_logits(model: PreTrainedModel, selection: Selection, ids: Sequence[int]) -> Tensor:
    """(N, V) logits of context + continuation, where the continuation sees the selected part of the context only."""
    total = len(ids)
    heads = model.config.num_attention_heads
    causal = torch.ones(total, total, dtype=torch.bool).tril()
    masks = []
    for kept in selection:
        seen = causal.expand(heads, -1, -1).clone()
        seen[:, CONTEXT:, :CONTEXT] &= kept.repeat_interleave(heads // KV_HEADS, dim=0).unsqueeze(1)
        masks.append(torch.zeros(seen.shape).masked_fill(~seen, float("-inf")))

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float,
        **_: object,
    ) -> tuple[Tensor, None]:
        key, value = (each.repeat_interleave(heads // KV_HEADS, dim=1) for each in (key, value))
        scores = query @ key.transpose(2, 3) * scaling + masks[module.layer_idx]
        return (scores.softmax(dim=-1) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("plain", attention)
    before = model.config._attn_implementation
    model.config._attn_implementation = "plain"
    try:
        with torch.no_grad():
            return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    finally:
        model.config._attn_implementation = before


def plain_greedy(
    model: PreTrainedModel, selection: Selection, context: list[int], most: int, stops: frozenset[int]
) -> list[int]:
    ids = [*context, *PROMPT]
    for _ in range(most):
        token = int(plain_logits(model, selection, ids)[-1].argmax())
        if token in stops:
            break
        ids.append(token)
    return ids[CONTEXT + len(PROMPT) :]


class Guesser:
    """In place of the drafter: says whatever the test wants."""

    def __init__(self, guess) -> None:
        self._guess, self.texts = guess, {}

    def __call__(self, prompt: Sequence[int], hint: Sequence[int], rows: int) -> Guesser:
        self.texts = {row: [] for row in range(rows)}
        return self

    def guess(self, row: int, most: int) -> list[int]:
        return self._guess(self.texts[row])[: max(most, 0)]

    def record(self, row: int, tokens: Sequence[int], guessed: int, right: int) -> None:
        self.texts[row] += tokens


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 6),
    equal=st.booleans(),
    most=st.integers(0, 9),
    hinted=st.booleans(),
)
def test_packed_answers_are_those_of_each_candidate_alone(tiny_llama, seed, rows, equal, most, hinted):
    context = random_context(seed)
    selections = [random_selection(seed + row, equal=equal) for row in range(rows)]
    stopping = plain_greedy(tiny_llama, selections[0], context, 4, frozenset())[-1]  # so that some rows end early
    structure = stops_at(tiny_llama, stopping)
    expected = [plain_greedy(tiny_llama, each, context, most, structure.stop_ids) for each in selections]
    hint = [*expected[-1], stopping] if hinted else []
    trace = record(structure, context)
    for limit in (1, 20_000, answers.HELD_BYTES):  # one row at a time, a few, all
        assert answer_ids(structure, trace, selections, PROMPT, most, hint=hint, limit=limit) == expected


def test_both_families_answer_as_stock_transformers_does_with_everything_kept(tiny_model):
    structure = stops_at(tiny_model)
    context = random_context(1)
    ids = torch.tensor([[*context, *PROMPT]])
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat([ids, tiny_model(input_ids=ids).logits[:, -1:].argmax(dim=-1)], dim=1)
    found = answer_ids(structure, record(structure, context), [everything()] * 2, PROMPT, 8)
    assert found == [ids[0, -8:].tolist()] * 2


def guesses(truth: list[int], kind: str):
    """Guesses that are right, wrong, right and then wrong, wrong and then right, or go on past the stop token."""

    def guess(text: list[int]) -> list[int]:
        coming = truth[len(text) : len(text) + 5]
        wrong = [(token + 1) % VOCABULARY for token in coming]
        return {
            "right": coming,
            "wrong": wrong,
            "half right": coming[:2] + wrong[2:],
            "first wrong": wrong[:1] + coming[1:],
            "long": [*coming, *[7] * 20],
            "none": [],
        }[kind]

    return guess


@pytest.mark.parametrize("kind", ["right", "wrong", "half right", "first wrong", "long", "none"])
@pytest.mark.parametrize("stopped", [True, False])
def test_no_guess_changes_an_answer(tiny_llama, monkeypatch, kind, stopped):
    context = random_context(3)
    selections = [random_selection(row) for row in range(5)]
    free = plain_greedy(tiny_llama, selections[2], context, 12, frozenset())
    structure = stops_at(tiny_llama, *free[7:8] * stopped)
    expected = [plain_greedy(tiny_llama, each, context, 12, structure.stop_ids) for each in selections]
    monkeypatch.setattr(answers, "Drafter", Guesser(guesses(free, kind)))
    assert answer_ids(structure, record(structure, context), selections, PROMPT, 12) == expected


def test_right_guesses_take_fewer_passes_than_tokens(tiny_llama, monkeypatch):
    context = random_context(3)
    structure = stops_at(tiny_llama)
    truth = plain_greedy(tiny_llama, everything(), context, 12, frozenset())
    monkeypatch.setattr(answers, "Drafter", Guesser(guesses(truth, "right")))
    passes: list[int] = []
    plain = compat.hidden_states
    monkeypatch.setattr(compat, "hidden_states", lambda *given: passes.append(given[1].numel()) or plain(*given))
    trace = record(structure, context)
    passes.clear()
    assert answer_ids(structure, trace, [everything()], PROMPT, 12) == [truth]
    assert passes == [len(PROMPT), 6, 5]  # the prompt gives one token; a pass gives its guesses and one more


@pytest.mark.parametrize("most", [0, 1])
def test_no_new_tokens_or_one_may_be_asked_for(tiny_llama, most):
    structure = stops_at(tiny_llama)
    context = random_context(4)
    first = plain_greedy(tiny_llama, everything(), context, 1, frozenset())
    assert answer_ids(structure, record(structure, context), [everything()] * 3, PROMPT, most) == [first[:most]] * 3


def test_answers_may_all_end_with_the_first_token(tiny_llama):
    context = random_context(4)
    selections = [random_selection(row) for row in range(6)]
    firsts = {token for each in selections for token in plain_greedy(tiny_llama, each, context, 1, frozenset())}
    structure = stops_at(tiny_llama, *firsts)
    assert answer_ids(structure, record(structure, context), selections, PROMPT, 9, hint=[5]) == [[]] * 6


def test_an_answer_that_does_not_fit_the_models_positions_is_refused():
    structure = ModelStructure.of(build_model("llama", max_position_embeddings=CONTEXT + len(PROMPT) + 3))
    trace = record(structure, random_context(0))
    answer_ids(structure, trace, [everything()], PROMPT, 3)
    with pytest.raises(ModelError, match="do not fit"):
        answer_ids(structure, trace, [everything()], PROMPT, 4)
    with pytest.raises(ModelError, match="do not fit"):
        likelihoods(structure, trace, [everything()], PROMPT, [5] * 4)


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), length=st.integers(1, 6))
def test_likelihoods_are_the_log_softmax_of_a_plain_forward(tiny_qwen2, seed, rows, length):
    context = random_context(seed)
    target = torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    selections = [random_selection(seed + row) for row in range(rows)]
    if rows > 1:  # a target that one of the candidates gets right
        target = plain_greedy(tiny_qwen2, selections[1], context, length, frozenset())
    structure = stops_at(tiny_qwen2)
    found = likelihoods(structure, record(structure, context), selections, PROMPT, target)
    for selection, each in zip(selections, found, strict=True):
        scores = plain_logits(tiny_qwen2, selection, [*context, *PROMPT, *target])[-length - 1 : -1]
        picked = scores.log_softmax(dim=-1)[torch.arange(length), target]
        assert each.mean_logprob == pytest.approx(float(picked.mean()), abs=1e-4)
        assert each.forced_match == (scores.argmax(dim=-1).tolist() == target)
    if rows > 1:
        assert found[1].forced_match


def test_many_positions_are_scored_a_part_at_a_time_with_the_same_result(tiny_llama, monkeypatch):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(0))
    selections = [random_selection(row) for row in range(5)]
    before = likelihoods(structure, trace, selections, PROMPT, [5, 6, 7])
    monkeypatch.setattr(forced, "LOGIT_ROWS", 4)
    after = likelihoods(structure, trace, selections, PROMPT, [5, 6, 7])
    assert [each.mean_logprob for each in after] == pytest.approx([each.mean_logprob for each in before], abs=1e-6)


def test_the_full_cache_agrees_with_itself_and_an_emptied_one_does_not(tiny_model):
    structure = stops_at(tiny_model)
    context = random_context(6)
    trace = record(structure, context)
    (continuation,) = answer_ids(structure, trace, [everything()], PROMPT, 8)
    emptied = [torch.arange(CONTEXT).expand(KV_HEADS, -1) < 1] * LAYERS
    full, half, empty = fidelities(structure, trace, [everything(), random_selection(1), emptied], PROMPT, continuation)
    assert full.kl == pytest.approx(0, abs=1e-6) and full.agreement == 1
    assert half.kl > 1e-3 and empty.kl > 1e-3 and empty.agreement < 1
    scores = plain_logits(tiny_model, random_selection(1), [*context, *PROMPT, *continuation])[-9:-1]
    truth = plain_logits(tiny_model, everything(), [*context, *PROMPT, *continuation])[-9:-1].log_softmax(dim=-1)
    divergence = (truth.exp() * (truth - scores.log_softmax(dim=-1))).sum(dim=-1).mean()
    assert half.kl == pytest.approx(float(divergence), abs=1e-4)


def test_results_depend_neither_on_the_order_nor_on_who_else_is_measured(tiny_llama):
    structure = stops_at(tiny_llama, 42)
    trace = record(structure, random_context(8))
    selections = [random_selection(row) for row in range(9)]
    target = [30, 31, 32]
    together = likelihoods(structure, trace, selections, PROMPT, target)
    texts = answer_ids(structure, trace, selections, PROMPT, 10)
    order = list(range(9))
    random.Random(0).shuffle(order)
    for members in ([4], [8, 0], order, order[:5]):
        chosen = [selections[row] for row in members]
        again = likelihoods(structure, trace, chosen, PROMPT, target)
        assert [each.mean_logprob for each in again] == pytest.approx(
            [together[row].mean_logprob for row in members], abs=1e-5
        )
        assert answer_ids(structure, trace, chosen, PROMPT, 10) == [texts[row] for row in members]


def test_measuring_leaves_the_trace_as_it_was(tiny_llama):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(8))
    before = {name: tensor.clone() for name, tensor in trace.tensors().items()}
    answer_ids(structure, trace, [everything(), random_selection(0)], PROMPT, 6)
    likelihoods(structure, trace, [everything()], PROMPT, [5, 6])
    assert all(torch.equal(before[name], tensor) for name, tensor in trace.tensors().items())


def test_the_queries_of_a_continuation_are_those_of_one_long_prefill(tiny_model):
    structure = stops_at(tiny_model)
    context = random_context(9)
    target = [30, 31, 32]
    found = queries_of(structure, record(structure, context), PROMPT, target)
    whole = record(structure, [*context, *PROMPT, *target[:-1]])
    for layer, queries in zip(whole.layers, found, strict=True):
        torch.testing.assert_close(queries, layer.queries[:, CONTEXT:], rtol=1e-4, atol=1e-5)


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32),
    rows=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    limit=st.sampled_from([1, 40_000, 10**9]),
)
def test_items_answered_together_get_the_answers_that_each_gets_alone(tiny_llama, seed, rows, limit):
    structure = stops_at(tiny_llama, 42)
    questions = []
    for number, count in enumerate(rows):
        trace = record(structure, random_context(seed + number)[: CONTEXT - number])
        selections = [
            [mask[:, : trace.tokens] for mask in random_selection(seed + 9 * number + i)] for i in range(count)
        ]
        for mask in (mask for selection in selections for mask in selection):
            mask[:, 0] = True
        prompt = PROMPT[: len(PROMPT) - number]
        questions.append(Question(trace, selections, prompt, 5 + number, [1, 2]))
    together = dict(answers.answers(structure, questions, limit))
    for number, question in enumerate(questions):
        assert together[number] == dict(answers.answers(structure, [question]))[0]


def test_prompts_are_read_a_few_rows_at_a_time_with_the_same_result(tiny_llama, monkeypatch):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(2))
    selections = [random_selection(row) for row in range(5)]
    before = answer_ids(structure, trace, selections, PROMPT, 6), likelihoods(structure, trace, selections, PROMPT, [5])
    monkeypatch.setattr(answers, "PASS_TOKENS", 2 * len(PROMPT))
    monkeypatch.setattr(forced, "PASS_TOKENS", 2 * len(PROMPT))
    after = answer_ids(structure, trace, selections, PROMPT, 6), likelihoods(structure, trace, selections, PROMPT, [5])
    assert after[0] == before[0]
    assert [e.mean_logprob for e in after[1]] == pytest.approx([e.mean_logprob for e in before[1]], abs=1e-5)


def test_a_trace_without_its_queries_gives_the_same_answers(tiny_llama):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(2))
    slim = trace.without_queries()
    assert slim.bytes < trace.bytes
    selections = [random_selection(row) for row in range(3)]
    assert answer_ids(structure, slim, selections, PROMPT, 6) == answer_ids(structure, trace, selections, PROMPT, 6)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_token_is_found_in_parts_of_the_vocabulary_as_in_the_whole(tiny_llama, monkeypatch, seed):
    monkeypatch.setattr(compat, "VOCABULARY_PART", 64)
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(seed))
    hidden[3] = 0  # all tokens equal: the first is taken
    best = compat.best_tokens(tiny_llama, hidden)
    assert best.tolist() == compat.logits(tiny_llama, hidden).argmax(dim=-1).tolist()
    assert best[3] == 0


def test_likelihoods_let_one_pass_go_before_the_next_is_made(tiny_llama, monkeypatch):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(0))
    made: list[weakref.ref[PackedCache]] = []

    class Watched(PackedCache):
        def __init__(self, *given: object, **named: object) -> None:
            assert all(earlier() is None for earlier in made)
            super().__init__(*given, **named)
            made.append(weakref.ref(self))

    monkeypatch.setattr(forced, "PackedCache", Watched)
    monkeypatch.setattr(forced, "PASS_TOKENS", 1)
    likelihoods(structure, trace, [random_selection(row) for row in range(4)], PROMPT, [5, 6])
    assert len(made) == 4


@pytest.mark.parametrize(("rows", "together"), [(2, 1), (4, 2), (100, 5)])
def test_a_question_is_asked_for_when_there_is_room_for_its_rows(tiny_llama, monkeypatch, rows, together):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(0))
    monkeypatch.setattr(answers, "ROWS", rows)
    in_flight, most = 0, 0

    def questions():
        nonlocal in_flight, most
        for seed in range(5):
            in_flight += 1
            most = max(most, in_flight)
            yield Question(trace, [random_selection(seed), random_selection(seed + 9)], PROMPT, 4)

    done = []
    for number, _ in answers.answers(structure, questions()):
        in_flight -= 1
        done.append(number)
    assert sorted(done) == list(range(5))
    assert most == together


def test_questions_without_candidates_or_new_tokens_are_done_at_once(tiny_llama):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(0))
    questions = [Question(trace, [], PROMPT, 4), Question(trace, [everything()], PROMPT, 0)]
    assert dict(answers.answers(structure, questions)) == {0: [], 1: [[]]}


TOKENIZER = build_tokenizer()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 4), cuts=st.lists(st.integers(0, 60), min_size=1, max_size=3))
def test_answers_end_with_a_stop_string_and_say_what_they_would_have_said(tiny_llama, seed, rows, cuts):
    structure = stops_at(tiny_llama, 42)
    trace = record(structure, random_context(seed))
    selections = [random_selection(seed + row) for row in range(rows)]
    whole = answer_ids(structure, trace, selections, PROMPT, 24)
    text = Ending(TOKENIZER).text(whole[0])
    ending = Ending(TOKENIZER, tuple(text[cut : cut + 2 + number] for number, cut in enumerate(cuts) if text[cut:]))
    found = answer_ids(structure, trace, selections, PROMPT, 24, hint=whole[-1][3:9], ending=ending)
    assert [ending.text(answer) for answer in found] == [ending.text(answer) for answer in whole]
    for answer, free in zip(found, whole, strict=True):
        end = ending.place(free, len(free))
        assert answer == free[:end], "which does not depend on how many tokens a pass found right"


def test_a_stop_string_ends_the_passes(tiny_llama, monkeypatch):
    structure = stops_at(tiny_llama)
    trace = record(structure, random_context(3))
    (whole,) = answer_ids(structure, trace, [everything()], PROMPT, 40)
    text = Ending(TOKENIZER).text(whole[:5])
    passes: list[int] = []
    plain = compat.hidden_states
    monkeypatch.setattr(compat, "hidden_states", lambda *given: passes.append(1) or plain(*given))
    (found,) = answer_ids(structure, trace, [everything()], PROMPT, 40, ending=Ending(TOKENIZER, (text[-3:],)))
    assert len(found) <= 5 and len(passes) <= 5


def test_a_stop_string_that_begins_earlier_and_ends_later_still_cuts_the_answer():
    ids = TOKENIZER("Here we go. There and", add_special_tokens=False)["input_ids"]
    ending = Ending(TOKENIZER, ("we go", "ere we go. T"))
    place = ending.place(ids, len(ids))
    assert place is not None and ending.text(ids[:place]) == ending.text(ids) == "H"
