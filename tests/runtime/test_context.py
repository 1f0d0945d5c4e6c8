"""Compressed contexts: read once, ask many questions in any order, nothing leaks from one to another."""

from __future__ import annotations

import copy
import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.families import build_model

from cachecraft.errors import BudgetError, ModelError, PolicyError, PolicyLoadError, UnknownNameError
from cachecraft.policy.contract import builtin_policies, load_policy
from cachecraft.policy.division import Divider
from cachecraft.runtime import context as context_module
from cachecraft.runtime.context import CompressedContext, prefill
from cachecraft.runtime.features import observe_prefill
from cachecraft.runtime.structure import ModelStructure

TEXT = (
    "The grass is green. The sky is blue. One of the special magic numbers for hidden-key is: 1234567. "
    "The sun is yellow. Here we go. There and back again.\n"
) * 2
QUESTIONS = ["What is the number?", "Is the grass green?", "What is all this about: sky, sun or grass?"]

ALLOCATING = '''"""Gives the first layer twice what the second one gets, and reads its budget while scoring."""
import torch


def score_tokens(f):
    return -(f.positions - f.keep[:, None]).abs().float()


def allocate(scores, total, floor):
    layers, heads = len(scores), scores[0].shape[0]
    counts = torch.full((layers, heads), 3 * total // 8)
    counts[1, 1:] = 2
    counts[1, 0] += total - int(counts.sum())
    return counts
'''


def entries(context: CompressedContext) -> list[torch.Tensor]:
    return [side.clone() for layer in context._cache.compressed for side in layer.entries()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("policy", ["keydiff", "snapkv", "random"])
def test_at_ratio_0_answers_are_those_of_plain_transformers(tiny_model, tiny_tokenizer, policy: str) -> None:
    context = prefill(tiny_model, tiny_tokenizer, TEXT, policy=policy, ratio=0.0)
    for question in QUESTIONS:
        message = [{"role": "user", "content": TEXT + question}]
        whole = tiny_tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = tiny_tokenizer(whole, add_special_tokens=False, return_tensors="pt")
        out = tiny_model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
        assert context.ask(question, max_new_tokens=12) == tiny_tokenizer.decode(out, skip_special_tokens=True)
    assert context.bytes == context.full_bytes


def test_the_prompt_is_the_models_own_template_with_one_bos(tiny_llama, tiny_tokenizer, monkeypatch) -> None:
    fed: list[int] = []
    original = context_module.observe_prefill

    def observe(structure, ids, observer):
        fed.extend(ids)
        original(structure, ids, observer)

    monkeypatch.setattr(context_module, "observe_prefill", observe)
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.5)
    assert tiny_tokenizer.decode(fed) == "<|im_start|>user\n" + TEXT
    assert fed.count(tiny_tokenizer.bos_token_id) == 1
    assert context.tokens == len(fed)


def test_a_base_model_without_a_template_is_asked_plainly(tiny_model, plain_tokenizer) -> None:
    context = prefill(tiny_model, plain_tokenizer, TEXT, ratio=0.0)
    ids = plain_tokenizer(TEXT + QUESTIONS[0] + " It is", add_special_tokens=False, return_tensors="pt")
    out = tiny_model.generate(**ids, max_new_tokens=20, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert context.ask(QUESTIONS[0], max_new_tokens=20, answer_prefix=" It is") == plain_tokenizer.decode(
        out, skip_special_tokens=True
    )


def test_an_answer_over_a_compressed_context_is_that_of_the_masked_dense_model(
    reference: SimpleNamespace, tiny_model, plain_tokenizer
) -> None:
    context = prefill(tiny_model, plain_tokenizer, TEXT, policy="snapkv:window=8", ratio=0.6)
    ids = plain_tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    dense = reference.dense_layers(tiny_model, ids)
    masks = []
    for layer, (keys, _) in zip(context._cache.compressed, dense, strict=True):
        stored = layer.entries()[0].view(2, -1, 16)
        masks.append((keys[:, :, None] == stored[:, None]).all(dim=-1).any(dim=-1))
        assert masks[-1].sum(dim=-1).tolist() == [stored.shape[1]] * 2
    new = plain_tokenizer(QUESTIONS[0], add_special_tokens=False)["input_ids"]
    wanted: list[int] = []
    for _ in range(12):
        wanted.append(int(reference.masked_logits(tiny_model, ids, new + wanted, masks)[-1].argmax()))
    stop = ModelStructure.of(tiny_model).stop_ids
    wanted = list(itertools.takewhile(lambda token: token not in stop, wanted))
    assert context.ask(QUESTIONS[0], max_new_tokens=12) == plain_tokenizer.decode(wanted)


def test_questions_in_any_order_and_repeated_get_the_same_answers(tiny_model, tiny_tokenizer) -> None:
    context = prefill(tiny_model, tiny_tokenizer, TEXT, ratio=0.5)
    before = entries(context)
    first = {question: context.ask(question, max_new_tokens=8) for question in QUESTIONS}
    for order in itertools.permutations(QUESTIONS):
        assert {question: context.ask(question, max_new_tokens=8) for question in order} == first
    assert same(entries(context), before)
    assert context.tokens == prefill(tiny_model, tiny_tokenizer, TEXT, ratio=0.5).tokens


def test_streams_of_two_contexts_may_be_read_in_turns(tiny_model, tiny_tokenizer, untouched) -> None:
    one = prefill(tiny_model, tiny_tokenizer, TEXT, ratio=0.5)
    two = prefill(tiny_model, tiny_tokenizer, TEXT[50:], policy="knorm", keep=9)
    wanted = one.ask(QUESTIONS[0], max_new_tokens=10), two.ask(QUESTIONS[1], max_new_tokens=10)
    pieces: tuple[list[str], list[str]] = [], []
    streams = one.stream(QUESTIONS[0], max_new_tokens=10), two.stream(QUESTIONS[1], max_new_tokens=10)
    for pair in itertools.zip_longest(*streams, fillvalue=""):
        assert untouched(), "between two tokens the model is as the caller knows it"
        for place, piece in enumerate(pair):
            pieces[place].append(piece)
    assert ("".join(pieces[0]), "".join(pieces[1])) == wanted
    assert len(pieces[0]) > 1


def test_a_stream_that_is_given_up_leaves_nothing_behind(tiny_model, tiny_tokenizer, untouched) -> None:
    context = prefill(tiny_model, tiny_tokenizer, TEXT, ratio=0.5)
    before = entries(context)
    stream = context.stream(QUESTIONS[0], max_new_tokens=10)
    next(stream, None)
    stream.close()
    assert untouched() and same(entries(context), before)


@pytest.mark.parametrize("policy", builtin_policies())
def test_no_state_of_one_text_leaks_into_the_next(tiny_llama, tiny_tokenizer, policy: str) -> None:
    loaded = load_policy(policy)
    alone = entries(prefill(tiny_llama, tiny_tokenizer, TEXT, policy=policy, ratio=0.5))
    prefill(tiny_llama, tiny_tokenizer, TEXT[::-1], policy=loaded, ratio=0.8)
    after = entries(prefill(tiny_llama, tiny_tokenizer, TEXT, policy=loaded, ratio=0.5))
    assert same(alone, after)


@pytest.mark.parametrize("policy", builtin_policies())
@pytest.mark.parametrize("text", ["", "a", "a b"])
def test_a_tiny_context_keeps_at_least_one_entry(tiny_llama, plain_tokenizer, tiny_tokenizer, policy, text) -> None:
    if text:
        context = prefill(tiny_llama, plain_tokenizer, text, policy=policy, ratio=0.99)
        assert context.tokens == len(plain_tokenizer(text)["input_ids"])
        assert context.kept.tolist() == [[1, 1], [1, 1]]
        assert isinstance(context.ask("?", max_new_tokens=1), str)
    else:
        chat = prefill(tiny_llama, tiny_tokenizer, text, policy=policy, ratio=0.5)
        assert int(chat.kept.min()) >= 1
        assert isinstance(chat.ask("?", max_new_tokens=1), str)


def test_a_one_token_context_answers_as_the_plain_model_does(tiny_model, plain_tokenizer) -> None:
    context = prefill(tiny_model, plain_tokenizer, "a", ratio=0.9)
    assert (context.tokens, context.kept.tolist(), context.bytes) == (1, [[1, 1], [1, 1]], context.full_bytes)
    ids = plain_tokenizer("a\nwhy?", add_special_tokens=False, return_tensors="pt")
    out = tiny_model.generate(**ids, max_new_tokens=9, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert context.ask("why?", max_new_tokens=9) == plain_tokenizer.decode(out, skip_special_tokens=True)


@pytest.mark.parametrize("policy", ["snapkv:window=4096", "streaming_llm", "h2o", "tova"])
def test_a_window_larger_than_the_context_is_no_error(tiny_llama, tiny_tokenizer, policy: str) -> None:
    context = prefill(tiny_llama, tiny_tokenizer, "The grass is green.", policy=policy, keep=5)
    assert context.kept.tolist() == [[5, 5], [5, 5]]


def test_a_text_without_tokens_is_refused(tiny_llama, plain_tokenizer, untouched) -> None:
    with pytest.raises(ModelError, match="has no tokens"):
        prefill(tiny_llama, plain_tokenizer, "", ratio=0.5)


def test_sizes_are_those_of_the_stored_tensors(tiny_llama, tiny_tokenizer) -> None:
    context = prefill(tiny_llama, tiny_tokenizer, TEXT, ratio=0.75)
    keep = int(context.tokens * 0.25 + 1e-9)
    assert context.kept.dtype == torch.int64
    assert context.kept.tolist() == [[keep, keep], [keep, keep]]
    assert context.bytes == sum(side.numel() * side.element_size() for side in entries(context))
    assert context.full_bytes == context.tokens * 2 * 2 * 2 * 16 * 4


def test_a_policy_that_divides_the_budget_gets_layers_and_heads_of_different_lengths(
    tiny_model, tiny_tokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "uneven.py"
    file.write_text(ALLOCATING)
    context = prefill(tiny_model, tiny_tokenizer, TEXT, policy=str(file), ratio=0.5)
    keep = int(context.tokens * 0.5 + 1e-9)
    assert int(context.kept.sum()) == keep * 4
    assert len(set(context.kept.flatten().tolist())) == 3
    assert context.policy == "uneven"
    answers = [context.ask(question, max_new_tokens=10) for question in QUESTIONS * 2]
    assert answers[:3] == answers[3:]


def test_each_layer_is_let_go_before_the_next_one_is_computed(tiny_llama, tiny_tokenizer, monkeypatch) -> None:
    seen: list[weakref.ref] = []
    original = Divider.decide

    def decide(divider, place, layer):
        assert all(earlier() is None for earlier in seen), "an earlier layer's dense arrays are still held"
        seen.append(weakref.ref(layer))
        return original(divider, place, layer)

    monkeypatch.setattr(Divider, "decide", decide)
    prefill(tiny_llama, tiny_tokenizer, TEXT, policy="observed_attention", ratio=0.5)
    assert len(seen) == 2


def test_a_context_says_which_policy_with_which_parameters_made_it(tiny_llama, tiny_tokenizer) -> None:
    plain = prefill(tiny_llama, tiny_tokenizer, TEXT, policy="snapkv", ratio=0.5)
    default = prefill(tiny_llama, tiny_tokenizer, TEXT, policy="snapkv:window=64", ratio=0.5)
    other = prefill(tiny_llama, tiny_tokenizer, TEXT, policy="snapkv:window=8", ratio=0.5)
    chunks = prefill(tiny_llama, tiny_tokenizer, TEXT, policy="snapkv", selector="chunks:4", ratio=0.5)
    assert [c.policy for c in (plain, default, other)] == ["snapkv", "snapkv", "snapkv:window=8"]
    assert plain.policy_id == default.policy_id == load_policy("snapkv").id
    assert len({plain.policy_id, other.policy_id, chunks.policy_id}) == 3


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "Say how much to keep"),
        ({"ratio": 0.5, "keep": 3}, "give exactly one"),
        ({"ratio": 1.0}, "at least 0 and below 1"),
        ({"ratio": float("nan")}, "at least 0 and below 1"),
        ({"keep": 0}, "keep at least 1"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(tiny_llama, tiny_tokenizer, budget, message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        prefill(tiny_llama, tiny_tokenizer, TEXT, **budget)


def test_what_does_not_fit_the_models_context_is_refused(tiny_llama, tiny_tokenizer, untouched) -> None:
    small = copy.deepcopy(tiny_llama)
    small.config.max_position_embeddings = 150
    context = prefill(small, tiny_tokenizer, "The grass is green.", ratio=0.5)
    assert isinstance(context.ask("Why?", max_new_tokens=5), str)
    with pytest.raises(ModelError, match="exceed the model's context of 150"):
        context.ask("Why? " * 100, max_new_tokens=5)
    with pytest.raises(ModelError, match="exceed the model's context of 150"):
        context.stream("Why?", max_new_tokens=150)
    with pytest.raises(ModelError, match="do not fit the model's context of 150"):
        prefill(small, tiny_tokenizer, "word " * 300, ratio=0.5)


def test_a_question_or_answer_of_no_tokens_is_refused(tiny_llama, plain_tokenizer) -> None:
    context = prefill(tiny_llama, plain_tokenizer, TEXT, ratio=0.5)
    with pytest.raises(ModelError, match="nothing to answer"):
        context.ask("")
    with pytest.raises(ModelError, match="max_new_tokens be at least 1"):
        context.ask("Why?", max_new_tokens=0)
    assert isinstance(context.ask("", answer_prefix=" So", max_new_tokens=3), str)


def test_wrong_policies_are_refused_before_and_during_the_prefill(tiny_model, tiny_tokenizer, tmp_path, untouched):
    with pytest.raises(UnknownNameError, match="keydiff"):
        prefill(tiny_model, tiny_tokenizer, TEXT, policy="keydif", ratio=0.5)
    with pytest.raises(PolicyLoadError, match="give the selector 'pages:16' to load_policy"):
        prefill(tiny_model, tiny_tokenizer, TEXT, policy=load_policy("knorm"), selector="pages:16", ratio=0.5)
    file = tmp_path / "writes.py"
    file.write_text("def score_tokens(f):\n    f.keys.zero_()\n    return f.keys.norm(dim=-1)\n")
    with pytest.raises(PolicyError):
        prefill(tiny_model, tiny_tokenizer, TEXT, policy=str(file), ratio=0.5)
    assert untouched()


def test_an_untested_class_is_refused_unless_forced(tiny_tokenizer) -> None:
    model = build_model("llama")
    model.__class__ = type("OtherForCausalLM", (type(model),), {})
    with pytest.raises(ModelError, match="not supported yet"):
        prefill(model, tiny_tokenizer, TEXT, ratio=0.5)
    assert isinstance(prefill(model, tiny_tokenizer, TEXT, ratio=0.5, force=True).ask("Why?", max_new_tokens=3), str)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_store_half_the_bytes(tiny_model, tiny_tokenizer, dtype: torch.dtype) -> None:
    model = copy.deepcopy(tiny_model).to(dtype)
    context = prefill(model, tiny_tokenizer, TEXT, ratio=0.5)
    assert context.bytes * 2 == prefill(tiny_model, tiny_tokenizer, TEXT, ratio=0.5).bytes
    assert isinstance(context.ask(QUESTIONS[0], max_new_tokens=5), str)


def test_evaluations_and_contexts_keep_the_same_entries(tiny_model, tiny_tokenizer) -> None:
    from cachecraft.evaluation.traces import layer_features, record
    from cachecraft.policy.decide import decide

    structure = ModelStructure.of(tiny_model)
    context = prefill(tiny_model, tiny_tokenizer, TEXT, policy="random", ratio=0.5)
    ids = tiny_tokenizer("<|im_start|>user\n" + TEXT, add_special_tokens=False)["input_ids"]
    for features, layer in zip(
        layer_features(structure, tiny_tokenizer, record(structure, ids)), context._cache.compressed, strict=True
    ):
        (decision,) = decide(load_policy("random"), features, [context.kept[features.layer]])
        assert torch.equal(layer.entries()[0], features.given("keys")[decision.mask])


def test_the_observer_sees_each_layer_once_and_in_order(tiny_model) -> None:
    seen: list[int] = []
    observe_prefill(ModelStructure.of(tiny_model), [5, 6], lambda call: seen.append(call.layer))
    assert seen == [0, 1]
