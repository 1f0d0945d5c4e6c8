"""The commands around results as a person meets them: tasks, compare, pitfalls, heatmap, and their bad inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cachecraft import api
from cachecraft.cli import app
from cachecraft.evaluation.settings import IDENTITY
from cachecraft.evaluation.store import open_run
from cachecraft.tasks.scoring import longbench
from tests.evaluation.made_runs import SETTINGS, result, wide, write
from tests.tasks.benchmark_data import lines, longbench_rows, write_benchmarks


def run(*arguments: str | Path) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, " ".join(found.output.split())


def test_tasks_lists_what_there_is_and_what_is_missing_here(tmp_path: Path) -> None:
    code, told = run("tasks")
    assert code == 0
    assert "gsm8k: GSM8K (arXiv 2110.14168)" in told and "licence: MIT" in told
    assert "missing: gsm8k needs GSM8K's test.jsonl: give it with --data" in told
    assert "needle:50 ready recall of one sentence 50 % into prose" in told
    assert "rouge_l F of ROUGE-L (LongBench)" in told
    code, told = run("tasks", "longbench", "--data", write_benchmarks(tmp_path / "data"))
    assert "longbench:qasper ready" in told and "needs LongBench's musique.jsonl" in told
    assert run("tasks", "longbensh") == (
        2,
        "Error: There is no family of tasks named 'longbensh'; did you mean "
        + ("longbench or longbench_v2 or mini_longbench?"),
    )


def test_what_is_missing_is_told_with_the_name_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longbench, "CHINESE_WORDS", "no_such_package")
    (tmp_path / "dureader.jsonl").write_text(lines(longbench_rows("dureader")))
    assert "pip install 'cachecraft-kv[chinese]'" in run("tasks", "longbench", "--data", tmp_path)[1]


def test_compare_says_what_is_shown_and_what_is_not(tmp_path: Path) -> None:
    scores = {"full": wide(0, 0.8), "good": wide(1, 0.7), "bad": wide(2, 0.3)}
    code, told = run("compare", write(tmp_path / "run", scores), "--margin", "30")
    assert code == 0
    assert "good beats bad at 0.5 by" in told
    assert "is within 30 points of the full cache: shown" in told and ": not shown" in told
    assert "1 comparisons of answer scores" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "RUN"], "no two policies to compare"),
        (["compare", "RUN", "--against", "nobody"], "There is no row of these runs named 'nobody'"),
        (["compare", "RUN", "--margin", "0"], "--margin 0 is no margin"),
        (["compare", "RUN", "--scoring", "rouge"], "hold no results under scoring 'rouge'"),
        (["compare", "absent"], "absent is not a run folder"),
        (["pitfalls", "RUN", "--scoring", "rouge"], "holds no results under scoring 'rouge'"),
        (["heatmap", "RUN"], "holds no answers to needle tasks; measure some with --tasks needle"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {"a": [1.0, 0.0]})
    code, told = run(*[str(folder) if part == "RUN" else part for part in arguments])
    assert code == 2 and sentence in told


def test_heatmap_prints_depth_by_length_and_pitfalls_what_survived(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS | {"length": [512, 1024]}, IDENTITY)
    for length in (512, 1024):
        for depth in (0, 50):
            kept = {"segments": {}, "survived": {"answer": depth == 0}, "whole": {"answer": 0.5}}
            detail = {"answer": "the number for x is: 7", "retention": kept}
            text = {"length": length, "needles": ["One of the special magic numbers for x is: 7."]}
            name = f"needle:{depth}"
            store.add([result("keydiff", length, float(depth == 0), task=name, detail=detail)], text)
    store.close()
    code, told = run("heatmap", tmp_path / "run")
    assert code == 0
    assert "keydiff at 0.5: share found" in told and "ROUGE-1 recall" in told
    rows = (tmp_path / "run" / "needle.csv").read_text().splitlines()
    assert rows[0] == "policy,budget,depth,length,items,found,rouge1_recall,rouge1_f" and len(rows) == 5
    assert (tmp_path / "run" / "needle_0.5.svg").stat().st_size > 1000
    code, told = run("pitfalls", tmp_path / "run")
    assert code == 0 and "keydiff 0.5 needle:50 2 0.00 0.50 — 0.00" in told
    assert run("heatmap", tmp_path / "run", "--policy", "nobody")[0] == 2


@pytest.mark.parametrize("made_by", ["budgets", "discover"])
def test_the_folder_of_another_command_is_refused_in_one_sentence(made_by: str, tmp_path: Path) -> None:
    folder = tmp_path / "b1"
    folder.mkdir()
    (folder / "run.yaml").write_text(f"command: {made_by}\nmodel: tiny\n")
    (folder / "run.sqlite").touch()
    sentence = f"b1 was made by `cachecraft {made_by}`; name a folder of `cachecraft evaluate`."
    for arguments in (["compare"], ["pitfalls"], ["table"], ["show", "--policy", "p", "--task", "t"]):
        code, told = run(arguments[0], folder, *arguments[1:])
        assert code == 2 and sentence in told
    assert (folder / "run.sqlite").stat().st_size == 0


def test_every_command_tells_two_programs_of_one_name_apart(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS, IDENTITY)
    kept = {"segments": {}, "survived": {"answer": True}, "whole": {"answer": 0.5}}
    for policy, value in (("a" * 64, 1.0), ("b" * 64, 0.0)):
        for number in range(3):
            detail = {"answer": "7", "retention": kept}
            store.add(
                [result("mine", number, value, id=f"{policy}{number}", policy=policy, detail=detail)], {"length": 9}
            )
    store.close()
    for command in ("table", "pitfalls", "compare"):
        code, told = run(command, tmp_path / "run")
        assert code == 0 and "(aaaaaaaa)" in told and "(bbbbbbbb)" in told, "names may wrap in a narrow terminal"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "mine (aaaaaaaa)" in page and "mine (bbbbbbbb)" in page
    code, told = run("show", tmp_path / "run", "--policy", "mine", "--task", "t")
    assert code == 2 and "known: mine (aaaaaaaa), mine (bbbbbbbb)" in told


def test_runs_in_folders_of_one_name_are_told_apart_in_a_report(tmp_path: Path) -> None:
    folders = [write(tmp_path / above / "run", {"a": [1.0, 0.0]}) for above in ("x", "y")]
    assert run("report", *folders, "-o", tmp_path / "both.html")[0] == 0
    page = (tmp_path / "both.html").read_text()
    assert "<title>x/run, y/run" in page


def test_a_summary_takes_the_first_scoring_that_its_results_hold(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS | {"scoring": ["answer", "fidelity"]}, IDENTITY)
    store.add([result("a", 0, 0.5, scoring="fidelity")], {"length": 512})
    store.close()
    assert api.open_evaluation(tmp_path / "run").summary().scoring == "fidelity"
    assert run("pitfalls", tmp_path / "run")[0] == 0


@pytest.mark.parametrize("command", ["table", "compare", "pitfalls", "heatmap"])
def test_a_run_that_was_stopped_before_its_first_result_is_said_to_hold_none(command: str, tmp_path: Path) -> None:
    code, told = run(command, write(tmp_path / "run", {}))
    assert code == 2 and told.startswith("Error: ") and ("no result" in told or "no answers" in told)


def test_maps_are_labelled_below_and_leave_out_what_was_rejected(tmp_path: Path) -> None:
    text = {"length": 512, "needles": ["One of the special magic numbers for x is: 7."]}
    held = [result(name, 0, 1.0, task="needle:0", detail={"answer": "7"}) for name in ("a", "b", "c", "d", "e", "half")]
    held.append(result("half", 1, None, task="needle:10", state="rejected", reason="it returned NaN."))
    store = open_run(tmp_path / "run", SETTINGS, IDENTITY)
    for each in held:
        store.add([each], text)
    store.close()
    code, told = run("heatmap", tmp_path / "run")
    assert code == 0 and "half at 0.5 was rejected: it returned NaN." in told and "half at 0.5: share" not in told
    drawn = (tmp_path / "run" / "needle_0.5.svg").read_text()
    assert drawn.count("<!-- 512 -->") == 4, "below the lowest map of each column"
