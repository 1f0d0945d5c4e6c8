"""Switching a model to CacheCraft's attention and back, and what is refused."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
import transformers
from tests.families import build_model
from transformers import AttentionInterface

from cachecraft.errors import ModelError
from cachecraft.runtime import compat
from cachecraft.runtime.attention import LayerCall, attending
from cachecraft.runtime.features import observe_prefill
from cachecraft.runtime.structure import ModelStructure


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_model_is_as_before_after_an_exception_in_the_middle(tiny_model, untouched, error) -> None:
    def stop(call: LayerCall) -> None:
        if call.layer == 1:
            raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        observe_prefill(ModelStructure.of(tiny_model), [5, 6, 7], stop)
    assert untouched()
    with torch.no_grad():
        tiny_model(input_ids=torch.tensor([[5, 6, 7]]))


def test_blocks_may_nest_and_each_restores_what_it_found(tiny_model, untouched) -> None:
    seen: list[str] = []
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), attending(tiny_model, observer=lambda call: seen.append(f"outer {call.layer}")):
        with attending(tiny_model, observer=lambda call: seen.append(f"inner {call.layer}")):
            tiny_model(input_ids=tokens, use_cache=False)
        tiny_model(input_ids=tokens, use_cache=False)
    assert seen == ["inner 0", "inner 1", "outer 0", "outer 1"]
    assert untouched()


def test_threads_that_share_a_model_wait_for_each_other(tiny_model, untouched) -> None:
    seen: dict[int, list[int]] = {}

    def run(thread: int) -> None:
        for _ in range(10):
            calls: list[int] = []
            observe_prefill(
                ModelStructure.of(tiny_model), [5 + thread, 6, 7], lambda call, calls=calls: calls.append(call.layer)
            )
            seen.setdefault(thread, []).append(len(calls))

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {thread: [2] * 10 for thread in range(3)}
    assert untouched()


def test_the_observed_pass_computes_what_the_model_computes(reference: SimpleNamespace, tiny_model) -> None:
    ids = torch.tensor([reference.random_ids(33, 0)])
    with torch.no_grad():
        wanted = tiny_model(input_ids=ids).logits
        with attending(tiny_model):
            hidden = compat.hidden_states(tiny_model, ids, torch.arange(33).unsqueeze(0), None)
        torch.testing.assert_close(compat.logits(tiny_model, hidden), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "mask", [torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.zeros(1, 1, 3, 3)], ids=["left padding", "4-D mask"]
)
def test_padding_and_masks_are_refused_instead_of_ignored(tiny_model, untouched, mask) -> None:
    ids = torch.tensor([[1, 5, 6], [5, 6, 7]])
    with attending(tiny_model), pytest.raises(ModelError, match="Padding and masks are not supported"):
        tiny_model(input_ids=ids, attention_mask=mask, use_cache=False)
    with torch.no_grad(), attending(tiny_model):
        tiny_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    assert untouched()


def test_masks_by_kind_of_layer_are_refused_unless_they_mask_nothing() -> None:
    model = build_model("gemma3")
    ids, kinds = torch.tensor([[5, 6, 7]]), ("full_attention", "sliding_attention")
    with torch.no_grad(), attending(model):
        model(input_ids=ids, attention_mask=dict.fromkeys(kinds), use_cache=False)
        with pytest.raises(ModelError, match="Padding and masks are not supported"):
            model(input_ids=ids, attention_mask=dict.fromkeys(kinds, torch.zeros(1, 1, 3, 3)), use_cache=False)


@pytest.mark.parametrize("version", ["4.57.1", "5.1.9", "5.25.0", "6.0.0"])
def test_an_untested_transformers_release_is_refused(tiny_model, monkeypatch, version: str) -> None:
    monkeypatch.setattr(transformers, "__version__", version)
    with pytest.raises(ModelError, match=f"transformers {version} is not supported; install one from"):
        ModelStructure.of(tiny_model, force=True)


def test_a_release_that_no_longer_calls_the_attention_function_is_noticed(tiny_model, monkeypatch) -> None:
    stock = AttentionInterface()["sdpa"]
    monkeypatch.setattr(compat, "register_attention", lambda name, function: AttentionInterface.register(name, stock))
    with pytest.raises(ModelError, match="showed CacheCraft the attention of layers \\[\\]"):
        observe_prefill(ModelStructure.of(tiny_model), [5, 6, 7], lambda call: None)


def test_outside_of_its_block_the_attention_function_refuses_to_work(tiny_model) -> None:
    with attending(tiny_model):
        ours = AttentionInterface()["cachecraft"]
    arrays = [torch.zeros(1, heads, 3, 16) for heads in (4, 2, 2)]
    with pytest.raises(ModelError, match="outside of `with attending"):
        ours(tiny_model.model.layers[0].self_attn, *arrays, None)
