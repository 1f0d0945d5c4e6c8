"""RULER's needle tasks: the wording of the original generator, and the table's numbers of keys and values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from cachecraft.tasks import Item, load_tasks
from cachecraft.tasks.haystack import NOISE_LINE
from cachecraft.tasks.ruler.niah import Needle, wording

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
LINE = re.compile(rf"One of the special magic uuids for ({UUID}) is: ({UUID})\.")


def make(name: str, tokenizer: PreTrainedTokenizerFast, length: int = 1500) -> Item:
    (task,) = load_tasks([f"ruler:{name}"])
    return task.item(1, split="test", length=length, seed=0, tokenizer=tokenizer)


def test_the_originals_samples_are_rebuilt_word_for_word_from_their_keys_and_values(shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "ruler_4096_niah_multikey_3.jsonl").open(encoding="utf-8")]
    assert len(rows) == 500
    for row in rows:
        pairs = LINE.findall(row["input"])
        query = re.findall(r"for (\S+) mentioned", row["input"])[0]
        texts = wording("uuids", [query], 1)
        lines = "\n".join(Needle("uuids", key, value, key == query).sentence for key, value in pairs)
        assert row["input"] == f"{texts.opening}{lines}\n{texts.question}{texts.answer_prefix}"
        assert dict(pairs)[query] == row["outputs"][0]


def test_our_samples_have_the_structure_of_the_originals(shared: Path, plain: PreTrainedTokenizerFast) -> None:
    with (shared / "ruler_4096_niah_multikey_3.jsonl").open(encoding="utf-8") as file:
        original = json.loads(file.readline())["input"]
    item = make("niah_multikey_3", plain)
    ours = item.context + item.question + item.answer_prefix

    def shape(text: str) -> list[str]:
        lines = re.sub(UUID, "UUID", text).split("\n")
        return sorted(set(lines), key=lines.index)

    assert shape(ours) == shape(original)


def test_one_answer_is_asked_for_in_the_singular() -> None:
    texts = wording("numbers", ["red-leaf"], 1)
    assert texts.opening == (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n"
    )
    assert texts.question == "What is the special magic number for red-leaf mentioned in the provided text?"
    assert texts.answer_prefix == " The special magic number for red-leaf mentioned in the provided text is"


def test_several_answers_are_asked_for_in_the_plural_with_their_keys_joined() -> None:
    texts = wording("numbers", ["a", "b", "c"], 3)
    assert texts.opening == (
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the numbers afterwards.\n"
    )
    assert texts.question == ("What are all the special magic numbers for a, b, and c mentioned in the provided text?")
    assert texts.answer_prefix == " The special magic numbers for a, b, and c mentioned in the provided text are"
    assert " for a mentioned" in wording("numbers", ["a"], 4).question


@pytest.mark.parametrize(
    ("name", "needles", "distractors", "references", "value"),
    [
        ("niah_single_1", 1, 0, 1, r"\d{7}"),
        ("niah_single_2", 1, 0, 1, r"\d{7}"),
        ("niah_single_3", 1, 0, 1, UUID),
        ("niah_multikey_1", 1, 3, 1, r"\d{7}"),
        ("niah_multikey_2", 1, 0, 1, r"\d{7}"),
        ("niah_multikey_3", 1, 0, 1, UUID),
        ("niah_multivalue", 4, 0, 4, r"\d{7}"),
        ("niah_multiquery", 4, 0, 4, r"\d{7}"),
    ],
)
def test_each_task_has_the_needles_of_the_table(
    name: str, needles: int, distractors: int, references: int, value: str, plain: PreTrainedTokenizerFast
) -> None:
    item = make(name, plain)
    names = [segment.name for segment in item.segments]
    assert names.count("needle") == needles
    assert names.count("distractor") == distractors
    assert len(set(item.references)) == references
    assert all(re.fullmatch(value, reference) for reference in item.references)
    assert item.max_new_tokens == 128


def test_noise_is_whole_lines_around_the_needle(plain: PreTrainedTokenizerFast) -> None:
    item = make("niah_single_1", plain)
    opening, *lines, last = item.context.split("\n")
    assert opening.startswith("A special magic number is hidden")
    assert last == ""
    assert sorted(set(lines)) == sorted({NOISE_LINE, next(line for line in lines if line != NOISE_LINE)})
    assert len(lines) - lines.count(NOISE_LINE) == 1


def test_every_line_of_a_needle_haystack_is_a_needle_with_its_own_key(plain: PreTrainedTokenizerFast) -> None:
    for name in ("niah_multikey_2", "niah_multikey_3"):
        lines = make(name, plain, 2500).context.split("\n")[1:-1]
        keys = [line.split(" for ")[1].split(" is: ")[0] for line in lines]
        assert len(set(keys)) == len(keys) > 15


def test_needles_in_essays_follow_a_sentence_end(plain: PreTrainedTokenizerFast) -> None:
    for name in ("niah_single_2", "niah_multikey_1", "niah_multivalue", "niah_multiquery"):
        item = make(name, plain, 2500)
        text = item.context.split("\n", 1)[1]
        shift = len(item.context) - len(text)
        for segment in item.segments:
            before = text[: segment.start - shift].rstrip(" \"')]”’")
            assert segment.name in ("answer", "instruction") or not before or before[-1] in ".!?"


def test_essay_items_name_the_text_they_were_cut_from(plain: PreTrainedTokenizerFast) -> None:
    assert len(make("niah_single_2", plain).source) == 64
    assert make("niah_single_1", plain).source == ""
