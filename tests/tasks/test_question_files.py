"""Reading questions: every form of the data, and one clear sentence for each way in which a file is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.question_data import HOTPOT_NAME, SQUAD_NAME, hotpot, hotpot_rows, paragraph, squad, squad_rows

from cachecraft.errors import TaskError
from cachecraft.tasks import SPLITS
from cachecraft.tasks.question_files import FORMS, Form, read_hub, read_question_files
from cachecraft.tasks.questions import Asked, Block, cut_by_split


def read(file: Path, content: Any, form: Form) -> tuple[Block, ...]:
    """The blocks of a file with this content."""
    rows = file.suffix == ".jsonl"
    file.write_text("\n".join(map(json.dumps, content)) + "\n" if rows else json.dumps(content), encoding="utf-8")
    found = read_question_files([str(file)])
    assert list(found) == [form]
    return found[form]


def test_squad_gives_the_answerable_questions_of_each_article(tmp_path: Path) -> None:
    blocks = read(tmp_path / "a.json", squad(3, 2), "squad")
    assert len(blocks) == 3
    assert blocks[1].documents == (paragraph(2)[0], paragraph(3)[0])
    assert blocks[1].asked == (
        Asked("What lights Cormere 002?", ("7002 lanterns", "7002"), (0,)),
        Asked("What lights Dunmere 003?", ("7003 lanterns", "7003"), (1,)),
    )


def test_hotpot_gives_the_supporting_paragraphs_with_their_titles(tmp_path: Path) -> None:
    (block,) = read(tmp_path / "a.json", hotpot(1), "hotpot")
    assert [text.split("\n")[0] for text in block.documents][:2] == ["Almere 2000", "Bermere 2001"]
    assert block.asked[0].gold == (4, 1)
    assert block.asked[0].answers == ("yes",)


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_rows_as_the_hub_has_them_give_the_same_as_the_file(ending: str, tmp_path: Path) -> None:
    assert read(tmp_path / f"r.{ending}", squad_rows(squad()), "squad") == read(tmp_path / "f.json", squad(), "squad")
    assert read(tmp_path / f"r.{ending}", hotpot_rows(hotpot()), "hotpot") == read(
        tmp_path / "f.json", hotpot(), "hotpot"
    )


def test_a_folder_gives_what_is_in_it_and_passes_over_the_rest(data: Path) -> None:
    found = read_question_files([str(data)])
    assert found == read_question_files([str(data / SQUAD_NAME), str(data / HOTPOT_NAME)])
    assert set(found) == set(FORMS)


def test_a_file_named_twice_counts_once(data: Path) -> None:
    once = cut_by_split(read_question_files([str(data)])["squad"])
    twice = cut_by_split(read_question_files([str(data), str(data / SQUAD_NAME)])["squad"])
    assert twice.documents == once.documents
    assert [len(part.questions) for part in twice.splits] == [len(part.questions) for part in once.splits]


def broken(change: str) -> Any:
    """A good file with one thing wrong in it."""
    data, rows, entries, columns = squad(), squad_rows(squad()), hotpot(), hotpot_rows(hotpot())
    match change:
        case "question gone":
            del data["data"][3]["paragraphs"][1]["qas"][0]["question"]
            return data
        case "answer a number":
            data["data"][2]["paragraphs"][0]["qas"][0]["answers"][1]["text"] = 7
            return data
        case "data no list":
            return {"data": 5}
        case "row without answers":
            del rows[7]["answers"]
            return rows
        case "empty context":
            rows[4]["context"] = ""
            return rows
        case "entry without answer":
            del entries[5]["answer"]
            return entries
        case "sentences no list":
            entries[2]["context"][1][1] = "one text"
            return entries
        case "unknown title":
            entries[6]["supporting_facts"][0][0] = "Nowhere"
            return entries
        case "no supporting facts":
            columns[1]["supporting_facts"] = {"title": [], "sent_id": []}
            return columns
        case _:
            return copy.deepcopy([{"text": "a", "label": 1}])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("question gone", r"file\.json .* data\[3\]\.paragraphs\[1\]\.qas\[0\]\.question is missing"),
        ("answer a number", r"data\[2\]\.paragraphs\[0\]\.qas\[0\]\.answers\[1\]\.text should be a valid string"),
        ("data no list", r"data should be a valid list"),
        ("row without answers", r"file\.json .* \[7\]\.answers is missing"),
        ("empty context", r"\[4\]\.context is empty"),
        ("entry without answer", r"\[5\]\.answer is missing"),
        ("sentences no list", r"\[2\]\.context\[1\]\[1\] should be a valid list"),
        ("unknown title", r"\[6\]\.supporting_facts names 'Nowhere', which is not among the titles"),
        ("no supporting facts", r"\[1\]\.supporting_facts is empty"),
        ("another form", r"none of the known forms .*: its first entry has the fields 'text', 'label'"),
    ],
)
def test_data_in_another_form_says_which_file_which_entry_and_which_field(
    change: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps(broken(change)))
    with pytest.raises(TaskError, match=sentence):
        read_question_files([str(file)])


def test_a_wrong_row_of_a_jsonl_file_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = squad_rows(squad())
    del rows[7]["question"]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TaskError, match=r"rows\.jsonl .* line 8, question is missing"):
        read_question_files([str(file)])
    file.write_text(json.dumps(rows[0]) + "\n{'single': 1}\n")
    with pytest.raises(TaskError, match=r"rows\.jsonl is not JSON: line 2, column 2"):
        read_question_files([str(file)])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{\n"data": [,]}', r"is not JSON: line 2, column 10"),
        (b"", r"is empty; give another file"),
        (b"[]", r"none of the known forms .*: it is empty"),
        (b"[3]", r"its first entry is int, not an object"),
        (b'{"rows": []}', r"it has the fields 'rows'"),
        (b'"\xff"', r"is not UTF-8 text \(byte 1\)"),
    ],
)
def test_what_is_no_data_file_is_refused_in_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with pytest.raises(TaskError, match=sentence):
        read_question_files([str(file)])


def test_a_path_that_leads_nowhere_and_a_folder_without_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"absent\.json cannot be read \(No such file"):
        read_question_files([str(tmp_path / "absent.json")])
    with pytest.raises(TaskError, match=r"holds no data in a known form"):
        read_question_files([str(tmp_path)])


def test_the_hub_is_read_through_datasets_from_a_repository_of_the_same_form(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package `datasets` (extra: datasets) is not installed")
    for form, rows, folder in (
        ("squad", squad_rows(squad()), tmp_path / "squad"),
        ("hotpot", hotpot_rows(hotpot()), tmp_path / "hotpot" / "distractor"),
    ):
        folder.mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(folder / "validation-00000-of-00001.parquet")
        repository = tmp_path / form
        listed = {"config_name": "distractor", "data_dir": "distractor"} if form == "hotpot" else {"data_dir": "."}
        (repository / "README.md").write_text(
            "---\nconfigs:\n- "
            + "\n  ".join(f"{k}: {v}" for k, v in ({"config_name": "default"} | listed).items())
            + "\n---\n"
        )
        found = read_hub(form, str(repository), "distractor" if form == "hotpot" else None)
        file = tmp_path / f"{form}.json"
        assert found == read(file, squad() if form == "squad" else hotpot(), form)
    with pytest.raises(TaskError, match=r"could not be loaded \(.*\); download its file and name it with --data"):
        read_hub("squad", str(tmp_path / "nowhere"))


def test_without_datasets_the_hub_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"pip install 'cachecraft-kv\[datasets\]'"):
        read_hub("squad")


def test_groups_stay_together_and_splits_get_about_as_many_questions() -> None:
    # A chain: each question shares a document with the next, so all of them must be in one split.
    chain = [
        Block((f"c{n}", f"c{n + 1}", f"near{n}"), (Asked(f"chain {n}?", ("x",), (0, 1)),), together=False)
        for n in range(6)
    ]
    single = [
        Block((f"s{n}", "near0", f"own{n}"), (Asked(f"single {n}?", ("x",), (0,)),), together=False) for n in range(12)
    ]
    found = cut_by_split([*single, *chain])
    homes = [{q.text.split()[0] for q in part.questions} for part in found.splits]
    assert sorted(map(sorted, homes)) == [["chain"], ["single"], ["single"]]
    assert [len(part.questions) for part in found.splits] == [6, 6, 6]
    assert sorted(number for part in found.splits for number in part.documents) == list(range(len(found.documents)))
    for part in found.splits:
        for question in part.questions:
            assert {*question.gold, *question.near} <= set(part.documents)
    assert len(found.splits) == len(SPLITS)
