"""Tasks by name: one, a family, no duplicates, and the nearest names for one that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tasks.question_data import SQUAD_NAME
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import TaskError, UnknownNameError
from cachecraft.tasks import SPLITS, Sources, choose_tasks, load_tasks, task_names
from cachecraft.tasks.registry import whole_names

QA = ("ruler:qa_1", "ruler:qa_2")
RULER = [name for name in task_names() if name.startswith("ruler:")]


def test_a_family_stands_for_all_of_its_tasks(data: Path) -> None:
    names = [task.name for task in load_tasks(["ruler"], sources=Sources(data=(str(data),)))]
    assert names == RULER
    assert len(names) == 13


def test_tasks_come_in_the_order_asked_for_and_once() -> None:
    names = [task.name for task in load_tasks(["ruler:vt", "ruler:niah_single_1", "ruler", "ruler:vt"])]
    assert names[:2] == ["ruler:vt", "ruler:niah_single_1"]
    assert sorted([*names, *QA]) == sorted(RULER)


def test_tasks_of_a_family_without_their_data_are_skipped_by_name_with_what_to_do(data: Path) -> None:
    without = choose_tasks(["ruler"])
    assert len(without.tasks) == 11
    assert set(without.skipped) == set(QA)
    assert without.skipped["ruler:qa_1"] == (
        "needs SQuAD's questions: give its file with --data (dev-v2.0.json), or --data hub"
    )
    file = str(data / SQUAD_NAME)
    with_one = choose_tasks(["ruler"], sources=Sources(data=(file,)))
    assert len(with_one.tasks) == 12
    assert with_one.skipped == {
        "ruler:qa_2": f"needs HotpotQA's questions, and {file} has none: "
        "give its file with --data (hotpot_dev_distractor_v1.json), or --data hub"
    }


@pytest.mark.parametrize("names", [["ruler:qa_1"], ["ruler", "ruler:qa_1"]])
def test_a_task_that_was_named_itself_is_not_skipped_but_refused(names: list[str]) -> None:
    with pytest.raises(TaskError, match=r"ruler:qa_1 cannot be made: it needs SQuAD's questions"):
        choose_tasks(names)


def test_the_hub_is_not_asked_for_anything_when_tasks_are_chosen() -> None:
    assert len(choose_tasks(["ruler"], sources=Sources(data=("hub",))).tasks) == 13


def test_a_task_named_after_one_of_its_family_needs_no_family() -> None:
    asked = ["longbench:qasper", "hotpotqa", "gsm8k", "needle:0", "50", "own.jsonl", "needle:10", "code", "math"]
    assert whole_names(asked) == (
        *("longbench:qasper", "longbench:hotpotqa", "gsm8k", "needle:0", "needle:50", "own.jsonl", "needle:10"),
        *("code", "math"),
    )
    assert [task.name for task in load_tasks(["needle:0", "50"])] == ["needle:0", "needle:50"]
    with pytest.raises(TaskError, match="longbench:hotpotqa cannot be made"):
        choose_tasks(["needle:0", "longbench:hotpotqa"])
    with pytest.raises(UnknownNameError, match="hotpotqa"):
        choose_tasks(["hotpotqa"])


def test_no_name_at_all_is_refused() -> None:
    with pytest.raises(TaskError, match="No task was named"):
        choose_tasks([])


@pytest.mark.parametrize(("name", "near"), [("ruler:niah_singel_1", "ruler:niah_single_1"), ("rular", "ruler")])
def test_an_unknown_task_offers_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        load_tasks([name])


def test_ruler_tasks_have_no_end() -> None:
    assert {task.size(split) for task in load_tasks(["ruler"]) for split in SPLITS} == {None}
    with pytest.raises(UnknownNameError):
        load_tasks(["ruler:vt"])[0].size("all")


def test_files_that_the_user_names_are_read_only_when_a_task_needs_them(
    tmp_path: Path, plain: PreTrainedTokenizerFast
) -> None:
    noise, essay = load_tasks(
        ["ruler:niah_single_1", "ruler:niah_single_2"], sources=Sources((tmp_path / "absent.txt",))
    )
    noise.item(0, split="test", length=900, seed=0, tokenizer=plain)
    with pytest.raises(TaskError, match=r"absent\.txt cannot be read"):
        essay.item(0, split="test", length=900, seed=0, tokenizer=plain)


def test_an_essay_of_the_users_own_is_the_haystack(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    file = tmp_path / "own.txt"
    file.write_text("Whales sing under the ice all winter. " * 90, encoding="utf-8")
    (own,) = load_tasks(["ruler:niah_single_2"], sources=Sources((file,)))
    (default,) = load_tasks(["ruler:niah_single_2"])
    item = own.item(0, split="test", length=900, seed=0, tokenizer=plain)
    assert "Whales sing under the ice" in item.context
    assert item.source != default.item(0, split="test", length=900, seed=0, tokenizer=plain).source
