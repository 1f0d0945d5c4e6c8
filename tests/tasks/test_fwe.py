"""RULER's frequent words: Zipf's counts, dots in the first rank, and the wording of the protocol."""

from __future__ import annotations

import math
import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from cachecraft.tasks import Item, load_tasks
from cachecraft.tasks.ruler.fwe import CodedText

OPENING = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)


def make(tokenizer: PreTrainedTokenizerFast, length: int = 3000, index: int = 0) -> Item:
    (task,) = load_tasks(["ruler:fwe"])
    return task.item(index, split="test", length=length, seed=0, tokenizer=tokenizer)


def words(item: Item) -> list[str]:
    assert item.context.startswith(OPENING) and item.context.endswith("\n")
    text = item.context.removeprefix(OPENING).removesuffix("\n")
    assert text == " ".join(text.split())
    return text.split()


def test_the_counts_are_those_of_zipfs_law_and_the_first_rank_is_dots(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain)
    ranked = Counter(words(item)).most_common()
    assert ranked[0][0] == "..."
    assert {word for word, _ in ranked[1:4]} == set(item.references)
    assert all(re.fullmatch("[a-z]{6}", word) for word, _ in ranked[1:])
    # The text length N is not written down; the first count gives it within ζ(2), and the others must agree.
    first = ranked[0][1]
    possible = range(math.floor(first * math.pi**2 / 6), math.ceil((first + 1) * math.pi**2 / 6) + 1)
    counts = [count for _, count in ranked]
    assert any(
        counts == [c for k in range(1, (3000 - 50) // 50 + 1) if (c := int(n / k**2 / (math.pi**2 / 6)))]
        for n in possible
    )


def test_question_prefix_and_limit_are_the_protocols(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain)
    assert item.question == (
        "Question: Do not provide any explanation. Please ignore the dots '....'. "
        "What are the three most frequently appeared words in the above coded text?"
    )
    assert item.answer_prefix == (
        " Answer: According to the coded text above, the three most frequently appeared words are:"
    )
    assert item.max_new_tokens == 50


def test_every_place_of_an_answer_is_marked_and_references_are_in_text_order(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain)
    marked = [item.context[s.start : s.end] for s in item.segments if s.name == "answer"]
    assert marked == [word for word in words(item) if word in item.references]
    assert tuple(dict.fromkeys(marked)) == item.references


@given(units=st.integers(53, 200_000), size=st.integers(4, 40))
def test_at_any_size_the_three_asked_for_are_clearly_the_most_frequent(units: int, size: int) -> None:
    counts = CodedText(tuple(map(str, range(size))), 0).counts(units)
    assert counts[0] > counts[1] > counts[2] > counts[3] > 0
    assert size == 4 or counts[3] > counts[4]
