"""Prompts: the model's own template or BOS, cut into pieces that together are the whole rendering."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cachecraft.chat import apply_template, frame
from cachecraft.errors import ModelError
from cachecraft.tasks import Item, load_tasks, render


def item_for(tokenizer: Any, length: int = 700) -> Item:
    (task,) = load_tasks(["ruler:niah_single_1"])
    return task.item(0, split="test", length=length, seed=0, tokenizer=tokenizer)


def test_the_pieces_of_a_chat_prompt_are_the_templates_full_rendering(
    chatty: PreTrainedTokenizerFast,
) -> None:
    item = item_for(chatty)
    around, prompt = frame(chatty), render(chatty, item)
    whole = apply_template(chatty, item.context + item.question) + item.answer_prefix
    assert around.head + item.context + item.question + around.tail + item.answer_prefix == whole
    assert chatty.decode(prompt.ids) == whole
    messages = [{"role": "user", "content": item.context + item.question}]
    assert (
        whole == chatty.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + item.answer_prefix
    )


def test_each_piece_holds_its_own_text_only(chatty: PreTrainedTokenizerFast) -> None:
    item = item_for(chatty)
    prompt = render(chatty, item)
    assert chatty.decode(prompt.context_ids) == "<s><|user|>\n" + item.context
    assert chatty.decode(prompt.question_ids) == item.question
    assert chatty.decode(prompt.tail_ids) == "<|end|>\n<|assistant|>\n" + item.answer_prefix


def test_a_template_that_writes_bos_gets_no_second_one(chatty: PreTrainedTokenizerFast) -> None:
    assert render(chatty, item_for(chatty)).ids.count(chatty.bos_token_id) == 1


def test_without_a_template_bos_comes_first_and_eos_never(with_bos: PreTrainedTokenizerFast) -> None:
    item = item_for(with_bos)
    prompt = render(with_bos, item)
    assert prompt.context_ids[0] == with_bos.bos_token_id
    assert prompt.ids.count(with_bos.bos_token_id) == 1
    assert with_bos.eos_token_id not in prompt.ids
    assert with_bos.decode(prompt.ids) == "<s>" + item.context + item.question + item.answer_prefix


def test_a_tokenizer_that_adds_nothing_gets_nothing(plain: PreTrainedTokenizerFast) -> None:
    item = item_for(plain)
    assert plain.decode(render(plain, item).ids) == item.context + item.question + item.answer_prefix


def test_an_item_may_do_without_the_chat_template(chatty: PreTrainedTokenizerFast) -> None:
    item = dataclasses.replace(item_for(chatty), chat=False)
    assert chatty.decode(render(chatty, item).ids) == "<s>" + item.context + item.question + item.answer_prefix


def test_an_empty_piece_has_no_tokens(plain: PreTrainedTokenizerFast) -> None:
    prompt = render(plain, dataclasses.replace(item_for(plain), question="", answer_prefix=""))
    assert prompt.question_ids == ()
    assert prompt.tail_ids == ()


@pytest.mark.parametrize(
    "template", ["{{ 'nothing of it' }}", "{{ messages[0]['content'] }}{{ messages[0]['content'] }}"]
)
def test_a_template_that_drops_or_repeats_the_text_is_refused(
    template: str, with_template: Callable[[str], PreTrainedTokenizerFast]
) -> None:
    with pytest.raises(ModelError, match="times instead of once"):
        frame(with_template(template))


def test_a_template_that_writes_the_date_gives_the_same_prompt_every_day(
    with_template: Callable[[str], PreTrainedTokenizerFast],
) -> None:
    body = "\n{% if true %}{{ strftime_now('%d %b %Y') }}{% endif %}\n{{ messages[0]['content'] }}!"
    undated = body.replace("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024")
    assert frame(with_template(body)) == frame(with_template(undated))


def test_thinking_is_switched_off_where_the_template_knows_it(
    with_template: Callable[[str], PreTrainedTokenizerFast],
) -> None:
    template = "{{ messages[0]['content'] }}{% if enable_thinking is false %}<think></think>{% endif %}"
    assert frame(with_template(template)).tail == "<think></think>"
