"""Generating from compressed prompts: what it computes, what it keeps, turn by turn, thread by thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, TextIteratorStreamer

import cachecraft
from cachecraft.policy.division import Divider
from cachecraft.runtime.compress import compress
from cachecraft.runtime.context import prefill
from cachecraft.runtime.structure import ModelStructure

SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
UNEVEN = '''"""Three quarters of the budget to the first layer, and of the second to its last head."""
import torch


def score_tokens(f):
    return torch.sin(f.positions * 1.7).expand(f.kv_heads, f.tokens) - f.keep[:, None] * 0.0


def allocate(scores, total, floor):
    counts = torch.full((2, 2), total // 8)
    counts[0, :] = 3 * total // 8
    counts[1, 0] = 2
    counts[1, 1] += total - int(counts.sum())
    return counts
'''


@pytest.fixture
def uneven(tmp_path: Path) -> str:
    path = tmp_path / "uneven.py"
    path.write_text(UNEVEN)
    return str(path)


def prompt(ids: Sequence[int]) -> dict[str, Tensor]:
    return {"input_ids": torch.tensor([list(ids)]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}


def generated(model: PreTrainedModel, ids: Sequence[int], **settings: Any) -> list[int]:
    """The new tokens after a prompt."""
    return model.generate(**prompt(ids), **(SETTINGS | settings))[0, len(ids) :].tolist()


def kept_places(cache: DynamicCache, dense: list[tuple[Tensor, Tensor]], tokens: int) -> list[Tensor]:
    """For each layer (G, T) bool: which of the first `tokens` dense entries the cache's only row still holds."""
    places = []
    for layer, (keys, _) in zip(cache.layers, dense, strict=True):
        stored = layer.entries()[0].split(layer.lengths[0].tolist())
        mine = [
            (own[:tokens, None] - held[None]).abs().amax(-1).min(-1).values
            for own, held in zip(keys, stored, strict=True)
        ]
        places.append(torch.stack(mine) < 1e-4)
    return places


@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "num_return_sequences": 3}, {"repetition_penalty": 1.3}])
def test_at_ratio_0_generate_gives_what_it_gives_without_us(reference, tiny_model, settings) -> None:
    ids = reference.random_ids(40, 0)
    torch.manual_seed(5)
    wanted = tiny_model.generate(**prompt(ids), **(SETTINGS | settings))
    torch.manual_seed(5)
    with compress(tiny_model, policy="keydiff", ratio=0.0):
        assert torch.equal(tiny_model.generate(**prompt(ids), **(SETTINGS | settings)), wanted)


@pytest.mark.parametrize("policy", ["knorm", "snapkv:window=6", "uneven"])
@pytest.mark.parametrize("hold_back", [0, 1, 8])
def test_new_and_held_back_tokens_see_what_was_kept_and_nothing_else(
    reference: SimpleNamespace, tiny_model, uneven, policy: str, hold_back: int
) -> None:
    ids = reference.random_ids(50, 1)
    cache = DynamicCache()
    with compress(tiny_model, policy=uneven if policy == "uneven" else policy, ratio=0.6, hold_back=hold_back) as run:
        out = tiny_model.generate(
            **prompt(ids), **SETTINGS, cache=cache, return_dict_in_generate=True, output_logits=True
        )
    lead = 50 - hold_back
    masks = kept_places(cache, reference.dense_layers(tiny_model, ids[:lead]), lead)
    counts = torch.stack([mask.sum(-1) for mask in masks])
    assert int(counts.sum()) == 4 * int(lead * 0.4 + 1e-9)
    assert (counts + hold_back).tolist() == run.last.kept[:, 0].tolist()
    assert (len(set(counts.flatten().tolist())) > 2) == (policy == "uneven")
    new = out.sequences[0, 50:].tolist()
    wanted = reference.masked_logits(tiny_model, ids[:lead], [*ids[lead:], *new], masks)
    found = torch.cat(out.logits)
    # Without a held-back token the first answer token is that of the full cache.
    first = 0 if hold_back else 1
    torch.testing.assert_close(found[first:], wanted[max(hold_back - 1, 0) :][: 8 - first], rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["keydiff", "observed_attention", "random"])
def test_it_keeps_what_a_compressed_context_of_the_same_tokens_keeps(tiny_model, plain_tokenizer, policy) -> None:
    text = "The grass is green. The sky is blue. One of the special magic numbers is: 1234567. " * 2
    context = prefill(tiny_model, plain_tokenizer, text, policy=policy, ratio=0.7)
    cache = DynamicCache()
    with compress(tiny_model, policy=policy, ratio=0.7, hold_back=0), torch.no_grad():
        tiny_model(**plain_tokenizer(text, return_tensors="pt", return_token_type_ids=False), cache=cache)
    for own, wanted in zip(cache.layers, context._cache.compressed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own.entries(), wanted.entries(), strict=True))


def test_a_prompt_says_what_was_kept_of_it(tiny_llama, reference) -> None:
    with compress(tiny_llama, policy="knorm", keep=10) as run:
        assert (run.policy, run.last) == ("knorm", None)
        generated(tiny_llama, reference.random_ids(48, 2))
    assert run.last.tokens == (48,)
    assert run.last.kept.tolist() == [[[18, 18]], [[18, 18]]]
    assert (run.last.bytes, run.last.full_bytes) == (18 * 2 * 2 * 2 * 16 * 4, 48 * 2 * 2 * 2 * 16 * 4)
    assert run.last.scoring_seconds > 0
    assert not run.last.forced


def test_a_prompt_no_longer_than_what_is_held_back_stays_whole(tiny_model, reference) -> None:
    for tokens in (1, 2, 7, 8):
        ids = reference.random_ids(tokens, tokens)
        wanted = generated(tiny_model, ids)
        with compress(tiny_model, policy="snapkv", ratio=0.99) as run:
            assert generated(tiny_model, ids) == wanted
        assert run.last.kept.unique().tolist() == [tokens]
        with compress(tiny_model, policy="snapkv", ratio=0.99, hold_back=0) as run:
            generated(tiny_model, ids)
        assert run.last.kept.unique().tolist() == [1]


def test_plain_forward_calls_are_compressed_too(tiny_model, reference) -> None:
    ids = reference.random_ids(40, 3)
    with compress(tiny_model, policy="knorm", ratio=0.5) as run, torch.no_grad():
        out = tiny_model(torch.tensor([ids]))
        step = tiny_model(torch.tensor([[7]]), cache=out.cache)
        assert run.last.kept.unique().tolist() == [16 + 8]
        assert out.logits.shape == (1, 40, 200)
        assert step.cache.get_seq_length() == 41
        whole = tiny_model.generate(**prompt([*ids, 7]), **SETTINGS, cache=step.cache)
    assert whole.shape == (1, 49)


def test_each_layer_is_let_go_before_the_next_one_is_computed(tiny_llama, reference, monkeypatch) -> None:
    seen: list[weakref.ref] = []
    original = Divider.decide

    def decide(divider, place, layer):
        assert all(earlier() is None for earlier in seen), "an earlier layer's dense arrays are still held"
        seen.append(weakref.ref(layer))
        return original(divider, place, layer)

    monkeypatch.setattr(Divider, "decide", decide)
    with compress(tiny_llama, policy="observed_attention", ratio=0.5):
        generated(tiny_llama, reference.random_ids(30, 4))
    assert len(seen) == 2


def test_a_policy_that_waits_for_all_layers_gives_all_hidden_states(tiny_llama, reference, tmp_path) -> None:
    file = tmp_path / "even.py"
    file.write_text(UNEVEN[: UNEVEN.index("    counts")] + "    return torch.full((2, 2), total // 4)\n")
    ids = prompt(reference.random_ids(30, 5))
    with compress(tiny_llama, policy=str(file), ratio=0.0), torch.no_grad():
        found = tiny_llama(**ids, output_hidden_states=True)
    with torch.no_grad():
        wanted = tiny_llama(**ids, output_hidden_states=True)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=0, atol=1e-5)
    assert [state.shape for state in found.hidden_states] == [state.shape for state in wanted.hidden_states]


def test_a_later_turn_has_its_own_new_tokens_compressed(tiny_model, reference) -> None:
    ids = reference.random_ids(40, 6)
    cache = DynamicCache()
    with compress(tiny_model, policy="knorm", ratio=0.5) as run:
        whole = tiny_model.generate(**prompt(ids), **SETTINGS, cache=cache)[0].tolist()
        assert cache.get_seq_length() == 47
        assert cache.layers[0].lengths.tolist() == [[16 + 8 + 7] * 2]
        longer = [*whole, *reference.random_ids(29, 7)]  # the answer's last token was not read yet
        more = tiny_model.generate(**prompt(longer), **SETTINGS, cache=cache)[0].tolist()
    assert cache.get_seq_length() == 48 + 29 + 7
    assert run.last.kept.unique().tolist() == [31 + 11 + 8]
    assert run.last.tokens == (77,)
    assert more[: len(longer)] == longer
    with compress(tiny_model, policy="vnorm", keep=3, hold_back=0):  # another block, another policy
        tiny_model.generate(**prompt([*more, 9, 10]), **SETTINGS, cache=cache)
    assert cache.layers[1].lengths.tolist() == [[50 + 7 + 3 + 7] * 2]


def test_in_a_later_turn_nothing_sees_what_an_earlier_turn_evicted(tiny_model, reference, tmp_path) -> None:
    file = tmp_path / "by_place.py"
    file.write_text("def score_tokens(f):\n    return (f.positions * 1.7).sin().expand(f.kv_heads, f.tokens)\n")
    ids = reference.random_ids(40, 15)
    cache = DynamicCache()
    more = SETTINGS | {"return_dict_in_generate": True, "output_logits": True}
    with compress(tiny_model, policy=str(file), ratio=0.5):
        whole = [
            *tiny_model.generate(**prompt(ids), **SETTINGS, cache=cache)[0].tolist(),
            *reference.random_ids(29, 16),
        ]
        out = tiny_model.generate(**prompt(whole), **more, cache=cache)
    total = 40 + 8 + 29 + 8
    visible = torch.ones(total, total, dtype=torch.bool).tril()
    # The last 8 of each turn are held back; the answer's last token is read with the second turn.
    for start, split in ((0, 32), (47, 69)):
        place = torch.arange(start, split)
        worst = place[(place * 1.7).sin().argsort()[: len(place) - len(place) // 2]]
        visible[split:, worst] = False
    wanted = reference.visible_logits(tiny_model, out.sequences[0].tolist(), [visible.expand(2, -1, -1)] * 2)
    torch.testing.assert_close(torch.cat(out.logits), wanted[76:84], rtol=0, atol=1e-5)


def test_at_ratio_0_later_turns_are_those_of_plain_transformers(tiny_model, reference) -> None:
    ids, more = reference.random_ids(30, 8), reference.random_ids(25, 9)
    first = [*ids, *generated(tiny_model, ids)]
    wanted = generated(tiny_model, [*first, *more])
    cache = DynamicCache()
    with compress(tiny_model, policy="keydiff", ratio=0.0):
        assert generated(tiny_model, ids, cache=cache) == first[30:]
        assert generated(tiny_model, [*first, *more], cache=cache) == wanted


def test_a_later_turn_is_judged_by_its_own_tokens_at_their_true_positions(tiny_model, reference, tmp_path) -> None:
    file = tmp_path / "looks.py"
    file.write_text(
        "def score_tokens(f):\n"
        "    assert f.positions.tolist() == list(range(int(f.positions[0]), int(f.positions[0]) + f.tokens))\n"
        "    assert int(f.positions[0]) in (0, 20)\n"
        "    again = f.rotate(f.keys_unrotated, f.positions)\n"
        "    assert (again - f.keys).abs().max() < 1e-4\n"
        "    return f.attention_received().mean(dim=1)\n"
    )
    cache = DynamicCache()
    with compress(tiny_model, policy=str(file), ratio=0.5, hold_back=0) as run, torch.no_grad():
        tiny_model(torch.tensor([reference.random_ids(20, 10)]), cache=cache)
        tiny_model(torch.tensor([reference.random_ids(12, 11)]), cache=cache)
    assert run.last.kept.unique().tolist() == [16]


def test_a_streamer_may_be_fed_from_another_thread(tiny_model, plain_tokenizer, reference) -> None:
    ids = reference.random_ids(40, 12)
    streamer = TextIteratorStreamer(plain_tokenizer, skip_prompt=True, timeout=60)
    with compress(tiny_model, policy="keydiff", ratio=0.5):
        wanted = plain_tokenizer.decode(generated(tiny_model, ids))
        settings = prompt(ids) | SETTINGS | {"streamer": streamer}
        thread = threading.Thread(target=tiny_model.generate, kwargs=settings)
        thread.start()
        assert "".join(streamer) == wanted
        thread.join()


def test_threads_that_share_a_model_get_what_they_get_alone(tiny_model, reference, untouched) -> None:
    prompts = [reference.random_ids(30 + n, n) for n in range(3)]
    with compress(tiny_model, policy="keydiff", ratio=0.5):
        wanted = [generated(tiny_model, ids) for ids in prompts]
        found: dict[int, list[int]] = {}
        threads = [
            threading.Thread(target=lambda n=n: found.update({n: generated(tiny_model, prompts[n])})) for n in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[n] for n in range(3)] == wanted
    assert untouched()


def test_a_context_may_be_made_and_asked_inside_the_block(tiny_model, tiny_tokenizer, reference) -> None:
    alone = prefill(tiny_model, tiny_tokenizer, "The sky is blue. " * 8, ratio=0.5).ask("Why?", max_new_tokens=9)
    with compress(tiny_model, policy="random", ratio=0.9) as run:
        context = prefill(tiny_model, tiny_tokenizer, "The sky is blue. " * 8, ratio=0.5)
        assert context.ask("Why?", max_new_tokens=9) == alone
        assert run.last is None


def test_two_models_may_be_compressed_at_once(tiny_llama, tiny_qwen2, reference) -> None:
    ids = reference.random_ids(30, 13)
    alone = []
    for model in (tiny_llama, tiny_qwen2):
        with compress(model, policy="knorm", ratio=0.5):
            alone.append(generated(model, ids))
    with compress(tiny_llama, policy="knorm", ratio=0.5), compress(tiny_qwen2, policy="knorm", ratio=0.5):
        assert [generated(tiny_llama, ids), generated(tiny_qwen2, ids)] == alone


def test_it_is_part_of_the_public_api(tiny_llama, reference) -> None:
    with cachecraft.compress(tiny_llama, policy="snapkv", selector="chunks:4", keep=9) as run:
        generated(tiny_llama, reference.random_ids(100, 14))
    assert isinstance(run, cachecraft.Compression)
    assert isinstance(run.last, cachecraft.CompressedPrompt)
    assert ModelStructure.of(tiny_llama).layers == len(run.last.kept)
