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
from cachecraft.tasks import SPLITS, Item, Segment, Sources, Task, item_seed, load_tasks, render, task_names
from cachecraft.tasks.haystack import NOISE_LINE
from cachecraft.tasks.words import split_of

NEEDLES = ("ruler:niah", "ruler:vt")  # tasks whose references stand in a needle each
LENGTH = 2000  # enough for every task with these tokenizers, which split most words into letters


RULER = [name for name in task_names() if name.startswith("ruler:")]


@pytest.fixture(params=RULER)
def task(request: pytest.FixtureRequest, tasks: dict[str, Task]) -> Task:
    """Each task in turn."""
    return tasks[request.param]


def total(tokenizer: PreTrainedTokenizerFast, item: Item) -> int:
    return len(render(tokenizer, item).ids) + item.max_new_tokens


@pytest.mark.parametrize("kind", ["plain", "with_bos", "chatty"])
def test_an_item_fills_its_length_and_never_exceeds_it(task: Task, kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    for length in (LENGTH, 2600):
        item = task.item(3, split="search", length=length, seed=7, tokenizer=tokenizer)
        # The largest units here: a line with two uuids, and a document.
        unit = 260 if task.name.startswith("ruler:qa") else 150
        assert length - unit < total(tokenizer, item) <= length


@pytest.mark.parametrize("name", ["ruler:niah_single_1", "ruler:vt"])
def test_one_more_line_of_noise_would_not_fit(
    name: str, tasks: dict[str, Task], chatty: PreTrainedTokenizerFast
) -> None:
    for index in range(8):
        item = tasks[name].item(index, split="test", length=1100 + index, seed=0, tokenizer=chatty)
        longer = replace(item, context=f"{item.context}{NOISE_LINE}\n")
        assert total(chatty, item) <= item.length < total(chatty, longer)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([name for name in task_names() if name.startswith(NEEDLES)]),
    index=st.integers(0, 500),
    split=st.sampled_from(SPLITS),
    length=st.integers(900, 1500),
    seed=st.integers(0, 2**31),
)
def test_every_reference_stands_once_where_an_answer_segment_says(
    tasks: dict[str, Task],
    plain: PreTrainedTokenizerFast,
    name: str,
    index: int,
    split: str,
    length: int,
    seed: int,
) -> None:
    item = tasks[name].item(index, split=split, length=length, seed=seed, tokenizer=plain)
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


def test_an_item_depends_on_nothing_but_its_arguments(task: Task, data: Path, plain: PreTrainedTokenizerFast) -> None:
    (again,) = load_tasks([task.name], sources=Sources(data=(str(data),)))
    first = task.item(5, split="test", length=LENGTH, seed=1, tokenizer=plain)
    task.item(6, split="search", length=LENGTH + 100, seed=2, tokenizer=plain)
    assert task.item(5, split="test", length=LENGTH, seed=1, tokenizer=plain) == first
    assert again.item(5, split="test", length=LENGTH, seed=1, tokenizer=plain).id == first.id
    others = [
        task.item(6, split="test", length=LENGTH, seed=1, tokenizer=plain),
        task.item(5, split="search", length=LENGTH, seed=1, tokenizer=plain),
        task.item(5, split="test", length=LENGTH, seed=2, tokenizer=plain),
        task.item(5, split="test", length=LENGTH + 1, seed=1, tokenizer=plain),
    ]
    assert len({first.id, *(other.id for other in others)}) == 5
    if not task.name.startswith("ruler:qa"):  # of questions there are only so many, in one order for all lengths
        assert all(other.references != first.references for other in others)


def test_ids_are_the_same_under_every_python_hash_seed(data: Path) -> None:
    script = (
        "import json, sys\n"
        "from cachecraft.tasks import Sources, load_tasks\n"
        "class Words:\n"
        "    chat_template = None\n"
        "    def __call__(self, text, **settings):\n"
        "        return {'input_ids': [len(word) for word in text.split()]}\n"
        "items = [t.item(2, split='test', length=900, seed=3, tokenizer=Words())\n"
        f"         for t in load_tasks(['ruler'], sources=Sources(data=({str(data)!r},)))]\n"
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
    assert len(set(outputs[0])) == 13


def test_the_seed_of_an_item_is_a_fixed_function() -> None:
    assert item_seed(0, "test", "ruler:vt", 1024, 0) == 794800562413487458
    seeds = {
        item_seed(b, s, t, n, i) for b in (0, 1) for s in SPLITS for t in ("a", "b") for n in (1, 11) for i in (1, 11)
    }
    assert len(seeds) == 2 * 3 * 2 * 2 * 2


def test_splits_share_no_answer(task: Task, plain: PreTrainedTokenizerFast) -> None:
    seen: dict[str, set[str]] = {split: set() for split in SPLITS}
    for number, split in enumerate(SPLITS):
        for index in range(4):
            item = task.item(index, split=split, length=LENGTH, seed=0, tokenizer=plain)
            seen[split] |= set(item.references) - {"yes"}
            if not task.name.startswith("ruler:qa"):
                assert {split_of(key) for key in keys_of(item)} == {number}
    assert len(set.union(*seen.values())) == sum(map(len, seen.values()))


def test_essays_of_different_splits_have_no_sentence_run_in_common(
    tasks: dict[str, Task], plain: PreTrainedTokenizerFast
) -> None:
    runs: dict[str, set[tuple[str, ...]]] = {}
    for split in SPLITS:
        words = [
            tasks["ruler:niah_single_2"].item(i, split=split, length=2500, seed=0, tokenizer=plain).context.split()[25:]
            for i in range(12)
        ]
        runs[split] = {tuple(each[i : i + 40]) for each in words for i in range(len(each) - 40)}
    assert not runs["search"] & runs["test"]
    assert not runs["search"] & runs["validation"]
    assert not runs["validation"] & runs["test"]


def test_places_differ_from_item_to_item_so_that_none_can_be_learnt(task: Task, plain: PreTrainedTokenizerFast) -> None:
    places = Counter()
    for index in range(12):
        item = task.item(index, split="test", length=LENGTH, seed=0, tokenizer=plain)
        needles = [s for s in item.segments if s.name in ("needle", "answer")]
        places[needles[0].start] += 1
    assert len(places) >= 6  # places are whole lines, some of which are drawn twice


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


def test_a_right_answer_scores_one_and_a_wrong_one_nothing(task: Task, plain: PreTrainedTokenizerFast) -> None:
    item = task.item(0, split="test", length=LENGTH, seed=0, tokenizer=plain)
    assert task.score(item.reference_text.upper(), item) == 1.0
    assert task.score("no idea", item) == 0.0
    alone = 1 if item.alternatives else 1 / len(item.references)
    assert task.score(item.references[0], item) == pytest.approx(alone, abs=1e-12)


@pytest.mark.parametrize(
    ("index", "split", "length", "error"),
    [(-1, "test", 1000, TaskError), (0, "tests", 1000, UnknownNameError), (0, "test", 0, TaskError)],
)
def test_arguments_that_mean_nothing_are_refused(
    index: int,
    split: str,
    length: int,
    error: type[Exception],
    tasks: dict[str, Task],
    plain: PreTrainedTokenizerFast,
) -> None:
    for task in tasks.values():
        with pytest.raises(error):
            task.item(index, split=split, length=length, seed=0, tokenizer=plain)


def test_the_id_covers_every_field_but_the_group() -> None:
    base = Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5)
    changed = [
        Item("u", 0, "test", 10, 0, "c", "q", "p", ("r",), 5),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, (Segment("needle", 0, 1),)),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, source="x"),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, stop=("x",)),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, alternatives=True),
        Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, solution="x"),
    ]
    assert len({base.id, *(item.id for item in changed)}) == 7
    assert base.id == "11321a0b52007cd3c1809f23f04c4bada9588f05c712daf6f5cc8964e3290cb8", (
        "items of before keep their ids"
    )
    assert Item("t", 0, "test", 10, 0, "c", "q", "p", ("r",), 5, group="x").id == base.id


def test_every_segment_is_a_part_of_the_context_and_the_instruction_is_one(
    task: Task, plain: PreTrainedTokenizerFast
) -> None:
    item = task.item(1, split="validation", length=LENGTH, seed=5, tokenizer=plain)
    assert all(0 <= segment.start < segment.end <= len(item.context) for segment in item.segments)
    parts = {s.name: item.context[s.start : s.end] for s in item.segments}
    assert set(parts) <= {"instruction", "example", "needle", "distractor", "answer"}
    openings = ("A special", "Some special", "Memorize", "Below is", "Read the", "Answer the question")
    assert parts["instruction"].startswith(openings)
    assert parts["instruction"] == parts["instruction"].strip()


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
    if not item.task.startswith("ruler:niah"):
        return set(item.references)
    sentences = [part.split(" is: ")[0] for part in item.context.split("One of the special magic ")[1:]]
    keys = {sentence.split(" for ")[1] for sentence in sentences}
    return keys if item.task.endswith("multikey_3") else {key.rsplit("-", 1)[1] for key in keys}
