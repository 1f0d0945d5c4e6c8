"""RULER's question answering: which documents come, where, and what is refused when there are too few."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.tasks.question_data import hotpot, squad
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import TaskError
from cachecraft.tasks import SPLITS, Item, Sources, load_tasks, render

INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
OPENING = f"{INSTRUCTION}\n\nThe following are given documents.\n\n"
FORMS = {"qa_1": squad(), "qa_2": hotpot()}


def make(
    name: str,
    data: Path,
    tokenizer: PreTrainedTokenizerFast,
    length: int = 2500,
    index: int = 0,
    split: str = "test",
    **changes: bool,
) -> Item:
    (task,) = load_tasks([f"ruler:{name}"], sources=Sources(data=(str(data),), **changes))
    return task.item(index, split=split, length=length, seed=0, tokenizer=tokenizer)


def documents(item: Item) -> list[str]:
    """The documents, whose numbers must be 1, 2, 3, …"""
    assert item.context.startswith(OPENING) and item.context.endswith("\n\n")
    pieces = re.split(r"Document (\d+):\n", item.context.removeprefix(OPENING))
    assert pieces[0] == ""
    assert pieces[1::2] == [str(number) for number in range(1, len(pieces) // 2 + 1)]
    assert all(piece.endswith("\n\n") for piece in pieces[2::2])
    return [piece.removesuffix("\n\n") for piece in pieces[2::2]]


def gold_of(item: Item) -> list[str]:
    """What the data says the question rests on."""
    asked = item.question.split("Question: ")[1]
    if item.task == "ruler:qa_1":
        parts = [part for article in FORMS["qa_1"]["data"] for part in article["paragraphs"]]
        return [part["context"] for part in parts if part["qas"][0]["question"] == asked]
    (entry,) = (entry for entry in FORMS["qa_2"] if entry["question"] == asked)
    texts = {title: f"{title}\n{''.join(sentences)}" for title, sentences in entry["context"]}
    return [texts[title] for title, _ in entry["supporting_facts"]]


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_the_documents_hold_what_the_question_rests_on_once_and_as_needles(
    name: str, data: Path, plain: PreTrainedTokenizerFast
) -> None:
    for index in range(6):
        item = make(name, data, plain, index=index)
        shown = documents(item)
        assert len(set(shown)) == len(shown)
        gold = gold_of(item)
        needles = [item.context[s.start : s.end].split("\n", 1)[1] for s in item.segments if s.name == "needle"]
        assert sorted(needles) == sorted(gold)
        assert {text for text in shown if text in gold} == set(gold)
        assert len([s for s in item.segments if s.name == "distractor"]) == len(shown) - len(gold)
        answers = {item.context[s.start : s.end] for s in item.segments if s.name == "answer"}
        assert answers == ({item.references[0]} if item.references != ("yes",) else set())


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_question_prefix_and_limit_are_the_protocols(name: str, data: Path, plain: PreTrainedTokenizerFast) -> None:
    item = make(name, data, plain)
    assert re.fullmatch(rf"{re.escape(INSTRUCTION)}\n\nQuestion: (What lights|Is) .*\?", item.question)
    assert item.answer_prefix == " Answer:"
    assert item.max_new_tokens == 32
    assert item.alternatives


def test_documents_of_the_same_article_come_before_any_others(data: Path, plain: PreTrainedTokenizerFast) -> None:
    item = make("qa_1", data, plain, length=1600)
    (article,) = (
        [part["context"] for part in article["paragraphs"]]
        for article in FORMS["qa_1"]["data"]
        if gold_of(item)[0] in [part["context"] for part in article["paragraphs"]]
    )
    assert 3 < len(documents(item)) < len(article)
    assert set(documents(item)) < set(article)
    longer = make("qa_1", data, plain, length=4000)
    assert set(article) < set(documents(longer))


def test_hotpots_own_distractors_come_before_any_others(data: Path, plain: PreTrainedTokenizerFast) -> None:
    item = make("qa_2", data, plain, length=2500)
    asked = item.question.split("Question: ")[1]
    (entry,) = (entry for entry in FORMS["qa_2"] if entry["question"] == asked)
    own = {f"{title}\n{''.join(sentences)}" for title, sentences in entry["context"]}
    assert own <= set(documents(item)) or set(documents(item)) <= own


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_no_document_and_no_question_is_in_two_splits(name: str, data: Path, plain: PreTrainedTokenizerFast) -> None:
    shown: dict[str, set[str]] = {split: set() for split in SPLITS}
    asked: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for index in range(5):
            item = make(name, data, plain, index=index, split=split)
            shown[split] |= set(documents(item))
            asked[split].append(item.question)
    assert len(set.union(*shown.values())) == sum(map(len, shown.values()))
    assert len({question for each in asked.values() for question in each}) == 15


def test_the_place_of_the_gold_document_differs_from_item_to_item(data: Path, plain: PreTrainedTokenizerFast) -> None:
    def places(**changes: bool) -> set[int]:
        items = [make("qa_1", data, plain, index=index, **changes) for index in range(12)]
        return {documents(item).index(gold_of(item)[0]) for item in items}

    assert len(places()) >= 5
    assert len(places(ruler_compat=True)) <= 2, "the original's shuffle puts it in the same place for each count"


def test_the_questions_are_the_same_at_every_length(data: Path, plain: PreTrainedTokenizerFast) -> None:
    assert make("qa_1", data, plain, 2500, 4).question == make("qa_1", data, plain, 3500, 4).question


def test_items_of_one_article_share_a_cluster_and_the_hash_of_the_data(
    data: Path, plain: PreTrainedTokenizerFast
) -> None:
    items = [make("qa_1", data, plain, index=index) for index in range(20)]
    assert 2 <= len({item.document for item in items}) <= 4
    assert len({item.source for item in items}) == 1


def test_other_data_gives_other_items(tmp_path: Path, data: Path, plain: PreTrainedTokenizerFast) -> None:
    changed = squad()
    changed["data"][0]["paragraphs"][0]["qas"][0]["answers"].pop()
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    assert make("qa_1", tmp_path, plain).source != make("qa_1", data, plain).source
    assert make("qa_1", tmp_path, plain).id != make("qa_1", data, plain).id


def test_a_question_whose_document_does_not_fit_is_passed_over(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    long = squad()
    for article in long["data"]:
        for part in article["paragraphs"][::2]:
            part["context"] += " The bees hum." * 400
    (tmp_path / "long.json").write_text(json.dumps(long))
    questions = [make("qa_1", tmp_path, plain, 1200, index).question for index in range(20)]
    assert len(set(questions)) == 20
    with pytest.raises(
        TaskError, match="holds 20 questions for split test that fit 1200 tokens, so there is no item 2"
    ):
        make("qa_1", tmp_path, plain, 1200, 25)


def test_data_too_small_for_the_length_says_what_length_it_serves(data: Path, plain: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TaskError, match=r"text for (\d+) tokens at most .* the length is 90000; ask for") as caught:
        make("qa_1", data, plain, 90_000)
    advised = int(str(caught.value).split("ask for ")[1].split()[0])
    item = make("qa_1", data, plain, advised)
    assert 0.98 * advised < len(render(plain, item).ids) + 32 <= advised


def test_data_that_cannot_be_cut_into_three_splits_is_refused(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    (tmp_path / "two.json").write_text(json.dumps(squad(articles=2)))
    with pytest.raises(TaskError, match="holds no question for split test: its questions rest on 2 unrelated groups"):
        make("qa_1", tmp_path, plain)


def test_real_files_make_items_of_their_length(shared: Path, chatty: PreTrainedTokenizerFast) -> None:
    for name in ("qa_1", "qa_2"):
        for index in range(3):
            item = make(name, shared, chatty, 6000, index)
            assert 4500 < len(render(chatty, item).ids) + 32 <= 6000
            assert len(documents(item)) >= 3
