"""Segments in tokens: through offsets, or without them; never a character too few."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft.chat import frame
from cachecraft.tasks import Item, load_tasks, render
from cachecraft.tasks.spans import token_spans
from cachecraft.tasks.task import Segment

TOKENIZERS = ("plain", "with_bos", "chatty")


class Slow:
    """A tokenizer that gives no offsets, as those written in Python do not."""

    is_fast = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.chat_template = inner.chat_template

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> Any:
        return self._inner(text, add_special_tokens=add_special_tokens, verbose=verbose)

    def apply_chat_template(self, *arguments: Any, **settings: Any) -> Any:
        return self._inner.apply_chat_template(*arguments, **settings)


@pytest.fixture(params=TOKENIZERS)
def fast(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def item_for(tokenizer: Any, task: str = "ruler:niah_multikey_1") -> Item:
    (loaded,) = load_tasks([task])
    return loaded.item(0, split="test", length=900, seed=0, tokenizer=tokenizer)


@pytest.mark.parametrize("task", ["ruler:niah_multikey_1", "ruler:vt"])
def test_the_tokens_of_a_segment_spell_its_text(fast: Any, task: str) -> None:
    item = item_for(fast, task)
    ids = render(fast, item).context_ids
    spans = token_spans(fast, item)
    for name in {segment.name for segment in item.segments}:
        texts = [item.context[s.start : s.end] for s in item.segments if s.name == name]
        told = fast.decode([ids[place] for place in spans[name]])
        assert all(text in told for text in texts)
        # At most the characters that share a token with an end are told beside it.
        assert len(told) <= sum(map(len, texts)) + 12 * len(texts)


def test_what_comes_before_the_text_is_the_template(fast: Any) -> None:
    item = item_for(fast)
    around, ids = frame(fast), render(fast, item).context_ids
    places = token_spans(fast, item).get("template", ())
    assert places == tuple(range(len(places)))
    before = fast.decode([ids[place] for place in places])
    assert before.startswith(fast.decode(list(around.first_ids)) + around.head)


def test_without_offsets_the_same_tokens_are_found(fast: Any) -> None:
    item = item_for(fast)
    assert token_spans(Slow(fast), item) == token_spans(fast, item)


TEXT = (
    "A special magic number is hidden within the following text. Make sure to memorize it. The café is naïve; there "
    "and back again, VAR ABCDE = 12345."
)


@given(start=st.integers(0, 140), length=st.integers(0, 60))
@settings(max_examples=60)
def test_any_stretch_of_text_is_covered_with_and_without_offsets(chatty: Any, start: int, length: int) -> None:
    cut = Item("t", 0, "test", 99, 0, TEXT, "?", "", (), 1, segments=(Segment("piece", start, start + length),))
    length = min(length, len(TEXT) - start)
    ids = render(chatty, cut).context_ids
    for tokenizer in (chatty, Slow(chatty)):
        spans = token_spans(tokenizer, cut)
        if length <= 0:
            assert "piece" not in spans
        else:
            assert cut.context[start : start + length] in chatty.decode([ids[place] for place in spans["piece"]])


def test_characters_of_several_tokens_are_covered_whole(plain: Any) -> None:
    text = "The café is here — naïve, and the sky is blue."
    item = dataclasses.replace(item_for(plain), context=text, segments=(Segment("word", 4, 8),))
    for tokenizer in (plain, Slow(plain)):
        ids = render(plain, item).context_ids
        assert "café" in plain.decode([ids[place] for place in token_spans(tokenizer, item)["word"]])
