"""Tasks of the user's own: what a line may say, and one sentence for everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import CacheCraftError, TaskError
from cachecraft.evaluation.plan import require_regime
from cachecraft.tasks import Sources, choose_tasks

GOOD: dict[str, Any] = {
    "context": "Bed 1 holds irises.",
    "question": "Bed 1?",
    "answers": ["irises"],
    "metric": "contains_any",
}


def write(folder: Path, *rows: dict[str, Any], name: str = "my_tasks.jsonl") -> str:
    file = folder / name
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(file)


def test_a_file_is_a_task_whose_lines_have_metrics_of_their_own(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    second = GOOD | {"question": "All?", "answers": ["a b", "c"], "metric": "contains_all", "answer_prefix": "It is"}
    third = {"context": "x", "question": "?", "answers": ["No"], "metric": "classification", "classes": ["Yes", "No"]}
    name = write(tmp_path, GOOD, second | {"max_new_tokens": 5, "stop": ["\n"], "chat": False}, third)
    (task,) = choose_tasks([name]).tasks
    assert task.name == "my_tasks.jsonl" and task.size("all") == 3
    items = [task.item(i, split="all", length=400, seed=0, tokenizer=plain) for i in range(3)]
    by_metric = {item.metric: item for item in items}
    assert task.score("irises and roses", by_metric["contains_any"]) == 1
    assert task.score("c", by_metric["contains_all"]) == 0.5
    assert task.score("Yes or No", by_metric["classification"]) == 0.5
    own = by_metric["contains_all"]
    assert (own.max_new_tokens, own.stop, own.chat, own.answer_prefix) == (5, ("\n",), False, "It is")
    assert own.reference_texts == (" a b, c",) and by_metric["contains_any"].reference_texts == ("irises",)


def test_a_prompt_in_one_piece_is_for_the_query_aware_regime(tmp_path: Path) -> None:
    (task,) = choose_tasks([write(tmp_path, GOOD, GOOD | {"question": ""})]).tasks
    assert task.regimes == ("aware",)
    with pytest.raises(TaskError, match=r"line 2 of my_tasks.jsonl has neither question nor answer prefix"):
        require_regime(task, "agnostic")


def test_a_prompt_of_one_token_is_refused_by_its_line(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    (task,) = choose_tasks([write(tmp_path, GOOD | {"context": "x", "question": "", "chat": False})]).tasks
    with pytest.raises(TaskError, match=r"line 1 of my_tasks.jsonl is a prompt of 1 token"):
        task.usable(1, split="all", length=400, seed=0, tokenizer=plain)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"answers": []}, r"line 2, answers is an empty list"),
        ({"answers": [""]}, r"line 2, answers\[0\] is empty"),
        ({"answers": "irises"}, r"line 2, answers should be a valid list"),
        ({"context": ""}, r"line 2, context is empty;"),
        ({"metric": "rouge"}, r"line 2: There is no metric named 'rouge'; did you mean rouge_l"),
        ({"metric": "classification"}, r"line 2, classes does not hold the answers"),
        ({"metric": "last_number", "answers": ["7", "twelve"]}, r"line 2: metric last_number cannot read .* 'twelve'"),
        ({"metric": "retrieval"}, r"line 2: metric retrieval cannot read the answer 'irises'"),
        ({"max_new_tokens": 0}, r"line 2, max_new_tokens should be greater than or equal to 1"),
        ({"answer": "x"}, r"line 2, answer is not a field of this form"),
        ({"question": GOOD["question"]}, r"line 2 asks what line 1 asks of the same context"),
    ],
)
def test_what_is_wrong_is_said_by_line_and_field(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=sentence):
        choose_tasks([write(tmp_path, GOOD, GOOD | {"question": "Bed 2?"} | change)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty; give another file"),
        ("{}", "line 1, context is missing"),
        ("{\n", "is not JSON: line 1, column 2"),
        ("[]", "line 1 should be an object"),
    ],
)
def test_a_file_that_holds_no_tasks_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "my_tasks.jsonl"
    file.write_text(text)
    with pytest.raises(TaskError, match=sentence):
        choose_tasks([str(file)])


def test_files_that_are_absent_share_a_name_or_were_named_as_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"absent\.jsonl cannot be read"):
        choose_tasks([str(tmp_path / "absent.jsonl")])
    (tmp_path / "other").mkdir()
    two = [write(tmp_path, GOOD), write(tmp_path / "other", GOOD)]
    with pytest.raises(TaskError, match=r"Two files of tasks are called my_tasks\.jsonl"):
        choose_tasks(two)
    with pytest.raises(TaskError, match=r"mine\.json is no file of tasks: such files end in \.jsonl"):
        choose_tasks(["mine.json"])
    with pytest.raises(CacheCraftError, match=r"a file of tasks of your own is named with --tasks"):
        choose_tasks(["gsm8k"], sources=Sources(data=(write(tmp_path, GOOD, name="mine.jsonl"),)))


def test_an_item_that_does_not_fit_is_named_by_its_line(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    (task,) = choose_tasks([write(tmp_path, GOOD | {"context": "bed " * 400})]).tasks
    with pytest.raises(TaskError, match=r"my_tasks\.jsonl: line 1 of my_tasks\.jsonl takes \d+ tokens with its 64 new"):
        task.item(0, split="all", length=300, seed=0, tokenizer=plain)
