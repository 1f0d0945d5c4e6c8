"""What holds for every task: lengths, identity, splits, and references that stand where the segments say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import TaskError, UnknownNameError
from cachecraft.tasks import SPLITS, Item, Segment, Task, item_seed, load_tasks, render, task_names
from cachecraft.tasks.haystack import NOISE_LINE
from cachecraft.tasks.words import split_of

TASKS = {task.name: task for task in load_tasks(task_names())}
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


def total(tokenizer: PreTrainedTokenizerFast, item: Item) -> int:
    return len(render(tokenizer, item).ids) + item.max_new_tokens


@every_task
@pytest.mark.parametrize("kind", ["plain", "with_bos", "chatty"])
def test_an_item_fills_its_length_and_never_exceeds_it(task: Task, kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    for length in (1200, 2048):
        item = task.item(3, split="search", length=length, seed=7, tokenizer=tokenizer)
        # A unit of the largest kind, a line with two uuids, takes fewer than 150 tokens here.
        assert length - 150 < total(tokenizer, item) <= length


@pytest.mark.parametrize("name", ["ruler:niah_single_1", "ruler:vt"])
def test_one_more_line_of_noise_would_not_fit(name: str, chatty: PreTrainedTokenizerFast) -> None:
    for index in range(8):
        item = TASKS[name].item(index, split="test", length=1100 + index, seed=0, tokenizer=chatty)
        longer = replace(item, context=f"{item.context}{NOISE_LINE}\n")
        assert total(chatty, item) <= item.length < total(chatty, longer)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(TASKS)),
    index=st.integers(0, 500),
    split=st.sampled_from(SPLITS),
    length=st.integers(900, 1500),
    seed=st.integers(0, 2**31),
)
def test_every_reference_stands_once_where_an_answer_segment_says(
    plain: PreTrainedTokenizerFast, name: str, index: int, split: str, length: int, seed: int
) -> None:
    item = TASKS[name].item(index, split=split, length=length, seed=seed, tokenizer=plain)
    assert total(plain, item) <= length
    answers = [item.context[s.start : s.end] for s in item.segments if s.name == "answer"]
    assert answers == list(item.references)
    for segment in item.segments:
        inside = item.context[segment.start : segment.end]
        assert inside
        if segment.name in ("needle", "distractor") and name != "ruler:vt":
            assert inside.startswith("One of the special magic ")
            assert inside.endswith(".")
    if name != "ruler:vt":
        assert all(item.context.count(reference) == 1 for reference in item.references)
    assert item.reference_text.split(", ")[-1].strip() == item.references[-1]


@every_task
def test_an_item_depends_on_nothing_but_its_arguments(task: Task, plain: PreTrainedTokenizerFast) -> None:
    (again,) = load_tasks([task.name])
    first = task.item(5, split="test", length=1000, seed=1, tokenizer=plain)
    task.item(6, split="search", length=1100, seed=2, tokenizer=plain)
    assert task.item(5, split="test", length=1000, seed=1, tokenizer=plain) == first
    assert again.item(5, split="test", length=1000, seed=1, tokenizer=plain).id == first.id
    others = [
        task.item(6, split="test", length=1000, seed=1, tokenizer=plain),
        task.item(5, split="search", length=1000, seed=1, tokenizer=plain),
        task.item(5, split="test", length=1000, seed=2, tokenizer=plain),
        task.item(5, split="test", length=1001, seed=1, tokenizer=plain),
    ]
    assert len({first.id, *(other.id for other in others)}) == 5
    assert all(other.references != first.references for other in others)


def test_ids_are_the_same_under_every_python_hash_seed() -> None:
    script = (
        "import json, sys\n"
        "from cachecraft.tasks import load_tasks\n"
        "class Words:\n"
        "    chat_template = None\n"
        "    def __call__(self, text, **settings):\n"
        "        return {'input_ids': [len(word) for word in text.split()]}\n"
        "items = [t.item(2, split='test', length=900, seed=3, tokenizer=Words())\n"
        "         for t in load_tasks(['ruler'])]\n"
        "print(json.dumps([item.id for item in items]))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    outputs = []
    for hash_seed in ("0", "12345"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        }
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(json.loads(run.stdout))
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == len(TASKS)


def test_the_seed_of_an_item_is_a_fixed_function() -> None:
    assert item_seed(0, "test", "ruler:vt", 1024, 0) == 794800562413487458
    seeds = {
        item_seed(b, s, t, n, i) for b in (0, 1) for s in SPLITS for t in ("a", "b") for n in (1, 11) for i in (1, 11)
    }
    assert len(seeds) == 2 * 3 * 2 * 2 * 2


@every_task
def test_splits_share_no_key_and_no_essay_text(task: Task, plain: PreTrainedTokenizerFast) -> None:
    for number, split in enumerate(SPLITS):
        for index in range(4):
            item = task.item(index, split=split, length=1000, seed=0, tokenizer=plain)
            assert {split_of(key) for key in keys_of(item)} == {number}


def test_essays_of_different_splits_have_no_sentence_run_in_common(plain: PreTrainedTokenizerFast) -> None:
    runs: dict[str, set[tuple[str, ...]]] = {}
    for split in SPLITS:
        words = [
            TASKS["ruler:niah_single_2"].item(i, split=split, length=2500, seed=0, tokenizer=plain).context.split()[25:]
            for i in range(12)
        ]
        runs[split] = {tuple(each[i : i + 40]) for each in words for i in range(len(each) - 40)}
    assert not runs["search"] & runs["test"]
    assert not runs["search"] & runs["validation"]
    assert not runs["validation"] & runs["test"]


@every_task
def test_places_differ_from_item_to_item_so_that_none_can_be_learnt(task: Task, plain: PreTrainedTokenizerFast) -> None:
    places = Counter()
    for index in range(12):
        item = task.item(index, split="test", length=1500, seed=0, tokenizer=plain)
        first = next(s for s in item.segments if s.name == "answer")
        places[first.start] += 1
    assert len(places) >= 6  # places are whole lines, some of which are drawn twice


@every_task
def test_a_length_too_short_names_the_least_and_a_length_that_works(
    task: Task, chatty: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(
        TaskError, match=rf"{task.name} needs at least \d+ tokens .* the length is 100; ask for"
    ) as caught:
        task.item(0, split="test", length=100, seed=0, tokenizer=chatty)
    advised = int(str(caught.value).rsplit("ask for ", 1)[1].split()[0])
    for index in range(5):
        item = task.item(index, split="test", length=advised, seed=0, tokenizer=chatty)
        assert total(chatty, item) <= advised


@every_task
def test_a_right_answer_scores_one_and_a_wrong_one_nothing(task: Task, plain: PreTrainedTokenizerFast) -> None:
    item = task.item(0, split="test", length=1000, seed=0, tokenizer=plain)
    assert task.score(item.reference_text.upper(), item) == 1.0
    assert task.score("no idea", item) == 0.0
    assert task.score(item.references[0], item) == pytest.approx(1 / len(item.references), abs=1e-12)


@pytest.mark.parametrize(
    ("index", "split", "length", "error"),
    [(-1, "test", 1000, TaskError), (0, "tests", 1000, UnknownNameError), (0, "test", 0, TaskError)],
)
def test_arguments_that_mean_nothing_are_refused(
    index: int, split: str, length: int, error: type[Exception], plain: PreTrainedTokenizerFast
) -> None:
    for task in TASKS.values():
        with pytest.raises(error):
            task.item(index, split=split, length=length, seed=0, tokenizer=plain)


def test_the_id_covers_every_field() -> None:
    base = Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5)
    changed = [
        Item("u", 0, "test", 10, 0, "c", "q", "p", ("r",), 5),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, (Segment("needle", 0, 1),)),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, source="x"),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, stop=("x",)),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, alternatives=True),
    ]
    assert len({base.id, *(item.id for item in changed)}) == 6


def test_the_likelihood_text_continues_the_answer_prefix() -> None:
    def text(prefix: str, alternatives: bool = False) -> tuple[str, ...]:
        item = Item("t", 0, "test", 10, 0, "c", "q", prefix, ("one", "two"), 5, alternatives=alternatives)
        return item.reference_texts

    assert text("they are") == (" one, two",)
    assert text("they are: ") == ("one, two",)
    assert text("") == ("one, two",)
    assert text(" Answer:", alternatives=True) == (" one", " two")


def keys_of(item: Item) -> set[str]:
    """The part of each key that decides its split."""
    if item.task == "ruler:vt":
        return set(item.references)
    sentences = [part.split(" is: ")[0] for part in item.context.split("One of the special magic ")[1:]]
    keys = {sentence.split(" for ")[1] for sentence in sentences}
    return keys if item.task.endswith("multikey_3") else {key.rsplit("-", 1)[1] for key in keys}
