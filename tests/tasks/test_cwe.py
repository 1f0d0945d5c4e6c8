"""RULER's common words: how often each word comes, the worked example, and the wording of the protocol."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import TaskError
from cachecraft.tasks import Item, load_tasks, render
from cachecraft.tasks.ruler.cwe import CountedWords

OPENING = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
QUESTION = "Question: What are the 10 most common words in the above list?"
PREFIX = " Answer: The top 10 words that appear most often in the list are:"


def make(tokenizer: PreTrainedTokenizerFast, length: int, index: int = 0, split: str = "test") -> Item:
    (task,) = load_tasks(["ruler:cwe"])
    return task.item(index, split=split, length=length, seed=0, tokenizer=tokenizer)


def numbered(text: str) -> list[str]:
    """The words of a numbered list, whose numbers must be 1, 2, 3, …"""
    found = re.findall(r"(\d+)\. (\S+)", text)
    assert " ".join(f"{number}. {word}" for number, word in found) == text
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [word for _, word in found]


def parts(item: Item) -> tuple[str, list[str]]:
    """The worked example and the words of the list."""
    (example,) = (segment for segment in item.segments if segment.name == "example")
    main = item.context[example.end :]
    assert main.startswith(OPENING) and main.endswith("\n")
    return item.context[: example.end], numbered(main.removeprefix(OPENING).removesuffix("\n"))


@pytest.mark.parametrize(("length", "common", "other"), [(3000, 6, 1), (4095, 6, 1), (9000, 30, 3)])
def test_ten_words_come_often_and_all_others_seldom(
    length: int, common: int, other: int, plain: PreTrainedTokenizerFast
) -> None:
    item = make(plain, length)
    counts = Counter(parts(item)[1])
    assert {word for word, count in counts.items() if count == common} == set(item.references)
    assert len(item.references) == 10
    assert set(counts.values()) == {common, other}


@pytest.mark.parametrize(("length", "words", "common", "other"), [(3000, 20, 3, 1), (9000, 40, 10, 3)])
def test_the_example_is_a_whole_problem_of_words_that_are_no_answers(
    length: int, words: int, common: int, other: int, plain: PreTrainedTokenizerFast
) -> None:
    item = make(plain, length)
    example, main = parts(item)
    problem, answer = example.split(f"\n{QUESTION}{PREFIX}")
    shown = Counter(numbered(problem.removeprefix(OPENING)))
    answers = numbered(answer.removesuffix("\n"))
    assert len(shown) == words
    assert {word for word, count in shown.items() if count == common} == set(answers)
    assert set(shown.values()) == {common, other}
    assert not set(shown) & set(main)


def test_question_prefix_and_limit_are_the_protocols(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain, 3000)
    assert (item.question, item.answer_prefix, item.max_new_tokens) == (QUESTION, PREFIX, 120)


def test_every_place_of_an_answer_is_marked_and_references_are_in_text_order(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain, 3000)
    marked = [item.context[s.start : s.end] for s in item.segments if s.name == "answer"]
    assert Counter(marked) == dict.fromkeys(item.references, 6)
    assert tuple(dict.fromkeys(marked)) == item.references
    assert marked == [word for word in parts(item)[1] if word in item.references]


def test_no_answer_contains_another_so_that_one_word_never_counts_twice(plain: PreTrainedTokenizerFast) -> None:
    for index in range(5):
        references = [reference.lower() for reference in make(plain, 2000, index).references]
        assert not [(a, b) for a in references for b in references if a != b and a in b]


def test_one_more_word_would_not_fit(chatty: PreTrainedTokenizerFast) -> None:
    for index in range(5):
        item = make(chatty, 2200 + index, index)
        used = len(render(chatty, item).ids) + item.max_new_tokens
        # No word of the pool takes more than 40 tokens with its number, even where each letter is a token.
        assert item.length - 40 < used <= item.length


def test_a_list_has_the_words_and_places_that_it_says() -> None:
    text, spans = CountedWords(("often",), ("once", "never"), (3, 1), order=4).text(1)
    assert Counter(numbered(text)) == {"often": 3, "once": 1}
    assert [text[low:high] for _, low, high in spans] == ["often"] * 3


def test_a_length_beyond_all_words_is_refused_with_the_length_there_is() -> None:
    class Words:
        """A tokenizer for which a word with its number is one token."""

        chat_template = None

        def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
            return {"input_ids": [0] * (len(text.split()) // 2)}

    (task,) = load_tasks(["ruler:cwe"])
    with pytest.raises(TaskError, match=r"has text for 2\d{4} tokens at most .* the length is 40000; ask for 2\d{4}"):
        task.item(0, split="test", length=40_000, seed=0, tokenizer=Words())  # type: ignore[arg-type]
