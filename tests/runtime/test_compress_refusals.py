"""What a compressed `generate` refuses, in one sentence each, and that the model is always left as it was."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import build_model
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, QuantizedCache, StaticCache

from cachecraft.errors import BudgetError, CacheCraftError, ModelError, PolicyLoadError, UnknownNameError
from cachecraft.policy.contract import load_policy
from cachecraft.runtime.compress import compress

IDS = torch.arange(4, 44).unsqueeze(0)
SETTINGS: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 1}


def refuse_in_block(model: Any, message: str, *arguments: Any, **settings: Any) -> None:
    with compress(model, policy="knorm", ratio=0.5) as run:
        with pytest.raises(ModelError, match=message) as caught:
            model.generate(*arguments, **(SETTINGS | settings))
        assert run.last is None, "refused only after the prompt was read"
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4}, "does not work with beam search"),
        ({"num_beams": 2, "do_sample": True}, "does not work with beam sample"),
        ({"prompt_lookup_num_tokens": 3}, "does not work with assisted generation"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"cache_implementation": "quantized"}, "cache_implementation='quantized'"),
        ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
        ({"use_cache": False}, "use_cache=False"),
        ({"prefill_chunk_size": 16}, "reads a prompt in pieces"),
    ],
)
def test_decoding_that_cannot_work_is_refused_before_the_prompt_is_read(tiny_llama, untouched, settings, message):
    refuse_in_block(tiny_llama, message, IDS, **settings)
    config = GenerationConfig(**(SETTINGS | settings))
    with compress(tiny_llama, policy="knorm", ratio=0.5), pytest.raises(ModelError, match=message):
        tiny_llama.generate(IDS, config)


def test_an_assistant_and_the_models_own_settings_are_seen(tiny_llama, tiny_qwen2, monkeypatch) -> None:
    refuse_in_block(tiny_llama, "assisted generation", IDS, assistant_model=tiny_qwen2)
    monkeypatch.setattr(tiny_llama.generation_config, "num_beams", 3)
    refuse_in_block(tiny_llama, "beam search", IDS)
    with compress(tiny_llama, policy="knorm", ratio=0.5):
        assert tiny_llama.generate(IDS, **SETTINGS, num_beams=1).shape[0] == 1


def test_a_kind_of_cache_that_comes_with_the_model_is_passed_over(tiny_llama, monkeypatch) -> None:
    wanted = tiny_llama.generate(IDS, **SETTINGS)
    monkeypatch.setattr(tiny_llama.generation_config, "cache_implementation", "static")
    with compress(tiny_llama, policy="knorm", ratio=0.0):
        assert torch.equal(tiny_llama.generate(IDS, **SETTINGS), wanted)


def test_caches_of_another_kind_are_refused(tiny_llama) -> None:
    static = StaticCache(config=tiny_llama.config, max_cache_len=60)
    refuse_in_block(tiny_llama, "A StaticCache cannot be compressed", IDS, cache=static)
    quantised = object.__new__(QuantizedCache)  # its backends are packages of their own
    with compress(tiny_llama, policy="knorm", ratio=0.5), pytest.raises(ModelError, match="A QuantizedCache cannot"):
        tiny_llama(IDS, cache=quantised)
    filled = DynamicCache()
    with torch.no_grad():
        tiny_llama(IDS, cache=filled)
    refuse_in_block(tiny_llama, "40 tokens that were read uncompressed", torch.cat((IDS, IDS), dim=1), cache=filled)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1] * 30 + [0] * 10], "pad on the left"),
        ([[0] * 5 + [1] * 5 + [0] + [1] * 29], "pad on the left"),
        ([[0] * 40], "nothing but padding"),
        ([[1] * 39], r"\(1, 39\) cannot be used; give one of \(1, 40\)"),
        ([[[[True] * 40] * 40]], "cannot be used"),
    ],
)
def test_masks_that_mean_something_else_than_left_padding_are_refused(tiny_model, mask, message) -> None:
    with compress(tiny_model, policy="knorm", ratio=0.5), pytest.raises(ModelError, match=message):
        tiny_model(IDS, attention_mask=torch.tensor(mask))


def test_a_right_padded_batch_is_refused_in_generate(tiny_model) -> None:
    mask = torch.tensor([[1] * 40, [1] * 30 + [0] * 10])
    refuse_in_block(tiny_model, "pad on the left", IDS.expand(2, -1), attention_mask=mask)


def test_calls_without_a_cache_ids_or_weights_are_refused(tiny_llama) -> None:
    with compress(tiny_llama, policy="knorm", ratio=0.5):
        with pytest.raises(ModelError, match="nothing to compress"):
            tiny_llama(IDS, use_cache=False)
        with pytest.raises(ModelError, match="give input_ids"):
            tiny_llama(inputs_embeds=torch.zeros(1, 4, 64))
        with pytest.raises(ModelError, match="leave out output_attentions"):
            tiny_llama(IDS, output_attentions=True)
        with pytest.raises(ModelError, match="do not fit 1 × 40 tokens"):
            tiny_llama(IDS, position_ids=torch.arange(39).unsqueeze(0))


def test_a_prompt_longer_than_the_models_context_is_refused(tiny_llama) -> None:
    small = copy.deepcopy(tiny_llama)
    small.config.max_position_embeddings = 39
    refuse_in_block(small, "40 tokens do not fit the model's context of 39", IDS)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({}, BudgetError, "Say how much to keep"),
        ({"ratio": 1.0}, BudgetError, "at least 0 and below 1"),
        ({"ratio": 0.5, "keep": 4}, BudgetError, "exactly one"),
        ({"ratio": 0.5, "policy": "keydif"}, UnknownNameError, "did you mean keydiff"),
        ({"ratio": 0.5, "policy": load_policy("knorm"), "selector": "pages:4"}, PolicyLoadError, "loaded already"),
        ({"ratio": 0.5, "hold_back": -1}, ModelError, "hold_back=-1"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_at_once(tiny_llama, untouched, asked, error, message) -> None:
    with pytest.raises(error, match=message), compress(tiny_llama, **asked):
        raise AssertionError("the block must not begin")


def test_a_policy_that_needs_a_tokenizer_says_so(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "special.py"
    file.write_text("def score_tokens(f):\n    return f.special_mask.float().expand(f.kv_heads, f.tokens)\n")
    with compress(tiny_llama, policy=str(file), ratio=0.5), pytest.raises(CacheCraftError, match="special_mask"):
        tiny_llama.generate(IDS, **SETTINGS)
    with compress(tiny_llama, policy=str(file), ratio=0.5, tokenizer=tiny_tokenizer) as run:
        tiny_llama.generate(IDS, **SETTINGS)
    assert run.last is not None


def test_a_model_is_compressed_by_one_block_at_a_time(tiny_model, untouched) -> None:
    with compress(tiny_model, policy="knorm", ratio=0.5) as outer:
        with pytest.raises(ModelError, match="being compressed already"), compress(tiny_model, keep=3):
            raise AssertionError("the block must not begin")
        tiny_model.generate(IDS, **SETTINGS)
        assert outer.last is not None, "the outer block goes on"
    assert untouched()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_the_block_the_model_is_as_before(tiny_model, untouched, error) -> None:
    signature = inspect.signature(tiny_model.generate)
    wanted = tiny_model.generate(IDS, **SETTINGS)

    def stop(ids: Any, scores: Any) -> Any:
        raise error("in the middle")

    def run() -> None:
        with compress(tiny_model, policy="knorm", ratio=0.5):
            assert inspect.signature(tiny_model.generate) == signature
            tiny_model.generate(IDS, **SETTINGS, logits_processor=LogitsProcessorList([stop]))

    with pytest.raises(error, match="in the middle"):
        run()
    assert untouched()
    assert torch.equal(tiny_model.generate(IDS, **SETTINGS), wanted)


def test_an_interrupted_reading_leaves_cache_and_model_as_they_were(tiny_model, untouched, monkeypatch) -> None:
    from cachecraft.policy.division import Divider

    original, calls = Divider.decide, []

    def decide(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    cache = DynamicCache()
    with compress(tiny_model, policy="knorm", ratio=0.5):
        with monkeypatch.context() as patch:
            patch.setattr(Divider, "decide", decide)
            with pytest.raises(KeyboardInterrupt):
                tiny_model.generate(IDS, **SETTINGS, cache=cache)
        assert cache.get_seq_length() == 0
        wanted = tiny_model.generate(IDS, **SETTINGS)
        assert torch.equal(tiny_model.generate(IDS, **SETTINGS, cache=cache), wanted)
    assert untouched()


def test_a_cache_of_an_interrupted_step_is_not_used_again(tiny_model, monkeypatch) -> None:
    from cachecraft.runtime.turns import Decoding

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        raise KeyboardInterrupt

    cache = DynamicCache()
    with compress(tiny_model, policy="knorm", ratio=0.5):
        tiny_model.generate(IDS, **SETTINGS, cache=cache)
        with monkeypatch.context() as patch:
            patch.setattr(Decoding, "attend", interrupted)
            with pytest.raises(KeyboardInterrupt), torch.no_grad():
                tiny_model(torch.tensor([[5]]), cache=cache)
        with pytest.raises(ModelError, match="interrupted forward pass"), torch.no_grad():
            tiny_model(torch.tensor([[5]]), cache=cache)


def test_a_compressed_cache_is_refused_outside_of_the_block(tiny_model) -> None:
    cache = DynamicCache()
    with compress(tiny_model, policy="knorm", ratio=0.5):
        tiny_model.generate(IDS, **SETTINGS, cache=cache)
    one = torch.tensor([[5]])
    for mask in (None, torch.zeros(1, 1, 1, 43)):
        with pytest.raises(ModelError, match="only inside `with compress"), torch.no_grad():
            tiny_model(one, attention_mask=mask, cache=cache)
    for refused in (lambda: cache.crop(-1), lambda: cache.reorder_cache(torch.tensor([0]))):
        with pytest.raises(ModelError, match="cannot be cut, reordered or moved"):
            refused()
    with compress(tiny_model, policy="knorm", ratio=0.5), pytest.raises(ModelError, match="holds 1 rows, but 2 came"):
        tiny_model(one.expand(2, -1), cache=cache)


def test_a_cache_of_another_model_is_refused(tiny_llama) -> None:
    cache, deeper = DynamicCache(), build_model("llama", num_hidden_layers=3)
    with compress(deeper, policy="knorm", ratio=0.5):
        deeper.generate(IDS, **SETTINGS, cache=cache)
    with compress(tiny_llama, policy="knorm", ratio=0.5), pytest.raises(ModelError, match="made with another model"):
        tiny_llama(torch.tensor([[5]]), cache=cache)


def test_a_later_turn_must_agree_with_the_padding_of_the_first(tiny_model) -> None:
    cache = DynamicCache()
    with compress(tiny_model, policy="knorm", ratio=0.5), torch.no_grad():
        tiny_model(IDS, attention_mask=torch.tensor([[0] * 3 + [1] * 37]), cache=cache)
        with pytest.raises(ModelError, match="the mask of the whole conversation"):
            tiny_model(torch.tensor([[5]]), attention_mask=torch.ones(1, 41, dtype=torch.int64), cache=cache)


def test_a_model_whose_forward_another_tool_replaced_gets_it_back(tiny_llama) -> None:
    inner, calls = tiny_llama.base_model, []
    original = inner.forward

    def counted(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        return original(*arguments, **settings)

    inner.forward = counted
    try:
        with compress(tiny_llama, policy="knorm", ratio=0.5):
            tiny_llama.generate(IDS, **SETTINGS)
        assert inner.forward is counted and calls
    finally:
        del inner.forward
