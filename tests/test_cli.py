"""The command line as a person meets it: results, one sentence for bad input, exit codes, going on."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import run
from tests.tasks.question_data import squad

RUN = ["evaluate", "--model", "tiny", "--length", "360", "--samples", "1", "--ratio", "0.5"]


pytestmark = [pytest.mark.system, pytest.mark.usefixtures("brief_answers", "tiny_on_command_line")]


def test_an_evaluation_prints_a_table_and_leaves_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, output = run(*RUN, "--policy", "knorm", "--policy", "keydiff", "--against", "knorm", "--run", folder)
    assert code == 0
    assert "knorm" in output and "hindsight" in output and "minus knorm" in output
    assert {"run.yaml", "run.sqlite", "table.csv", "table.json", "score_answer.png", "score_answer.svg"} <= {
        path.name for path in folder.iterdir()
    }
    assert run("table", folder)[0] == 0
    code, shown = run("show", folder, "--policy", "keydiff", "--task", "niah_single_1")
    assert code == 0
    assert "expected" in shown and "question" in shown


def test_a_table_fits_eighty_columns(tmp_path: Path) -> None:
    _, output = run(*RUN[:-1], "0.5,0.75,0.88", "--policy", "value_diversity", "--run", tmp_path / "run")
    table = output.split("Score:")[0]
    assert max(len(line) for line in table.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "knrm"], "did you mean knorm"),
        (["--policy", "snapkv:windw=3"], "did you mean window"),
        (["--policy", "knorm", "--tasks", "ruler:niah_singl_1"], "did you mean ruler:niah_single_1"),
        (["--policy", "knorm", "--ratio", "1"], "at least 0 and below 1"),
        (["--policy", "knorm", "--ratio", "half"], "'half' is not a number"),
        (["--policy", "knorm", "--keep", "1.5"], "'1.5' is not a number"),
        (["--policy", "knorm", "--keep", "0"], "keep at least 1"),
        (["--policy", "knorm", "--length", "60"], "needs at least"),
        (["--policy", "knorm", "--length", "99999"], "do not fit the model's context"),
        (["--policy", "knorm", "--samples", "0"], "ask for at least 1"),
        (["--policy", "knorm", "--regime", "both"], "choose agnostic or aware"),
        (["--policy", "knorm", "--scoring", "rouge"], "choose answer or likelihood"),
        (["--policy", "knorm", "--selector", "chunk:20"], "did you mean chunks"),
        (["--policy", "knorm", "--against", "nobody"], "There is no row of this run"),
        (["--policy", "missing.py"], "cannot be read"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    code, output = run(*RUN, *arguments, "--run", tmp_path / "run")
    assert code == 2
    assert sentence in " ".join(output.split())
    assert "Traceback" not in output


def test_tasks_without_data_are_skipped_by_name_and_the_table_says_of_how_many_it_is(tmp_path: Path) -> None:
    arguments = ["evaluate", "--model", "tiny", "--length", "1600", "--samples", "1", "--ratio", "0.5"]
    arguments += ["--policy", "knorm", "--references", "full", "--scoring", "likelihood", "--tasks", "ruler"]
    code, output = run(*arguments, "--run", tmp_path / "run")
    told = " ".join(output.split())
    assert code == 0
    assert "ruler:qa_1 is skipped: it needs SQuAD's questions" in told
    assert "macro average of 11 of 13 tasks" in told
    assert (
        "Skipped: qa_1 (it needs SQuAD's questions: give its file with --data (dev-v2.0.json), or --data hub)" in told
    )
    assert "qa_1 qa_2" in (tmp_path / "run" / "table.csv").read_text().replace("ruler:", "")


def test_the_data_of_a_question_task_is_named_with_data_and_anything_odd_in_it_is_one_sentence(tmp_path: Path) -> None:
    arguments = ["evaluate", "--model", "tiny", "--length", "1200", "--samples", "1", "--ratio", "0.5"]
    arguments += ["--policy", "knorm", "--references", "none", "--scoring", "likelihood", "--tasks", "ruler:qa_1"]
    code, output = run(*arguments, "--run", tmp_path / "run")
    assert (code, "ruler:qa_1 cannot be made: it needs SQuAD's questions" in " ".join(output.split())) == (2, True)
    data = squad()
    (tmp_path / "dev.json").write_text(json.dumps(data))
    assert run(*arguments, "--data", tmp_path, "--run", tmp_path / "run")[0] == 0
    del data["data"][0]["paragraphs"][2]["context"]
    (tmp_path / "dev.json").write_text(json.dumps(data))
    code, output = run(*arguments, "--data", tmp_path, "--run", tmp_path / "run")
    assert code == 2
    assert "dev.json has another form than expected: data[0].paragraphs[2].context is missing" in " ".join(
        output.split()
    )


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def score_tokens(f:\n", "line 1"),
        ("def score(f):\n    return f.keys.norm(dim=-1)\n", "score_tokens"),
        ("def score_tokens(f):\n    return f.keys.norm(dim=-1) * float('nan')\n", "nan"),
        ("def score_tokens(f):\n    f.keys.zero_()\n    return f.keys.norm(dim=-1)\n", "wrote"),
        (
            "import torch\ndef score_tokens(f):\n    return f.keys.norm(dim=-1)\n"
            "def select_tokens_to_keep(scores, keep, f):\n    return torch.ones_like(scores, dtype=torch.bool)\n",
            "keep",
        ),
    ],
)
def test_check_names_the_rule_that_a_file_breaks(source: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    code, output = run("check", path)
    assert code == 2
    assert sentence in output


def test_check_is_content_with_a_policy_that_keeps_the_contract() -> None:
    code, output = run("check", "keydiff")
    assert code == 0
    assert "keeps the contract" in output


def test_a_run_of_another_model_is_refused_and_stays_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(*RUN, "--policy", "knorm", "--run", folder)[0] == 0
    before = (folder / "run.yaml").read_text()
    code, output = run("evaluate", "--model", "other", *RUN[3:], "--policy", "knorm", "--run", folder)
    assert code == 2
    assert "holds a run with model 'tiny'" in " ".join(output.split())
    assert (folder / "run.yaml").read_text() == before


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachecraft.evaluation import grid

    measure = grid.measure
    calls = []

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for pending, results in measure(*arguments):
            calls.append(pending.item.id)
            if len(calls) == 2:
                raise KeyboardInterrupt
            yield pending, results

    folder = tmp_path / "run"
    arguments = [*RUN, "--samples", "2", "--policy", "knorm", "--run", folder]
    monkeypatch.setattr(grid, "measure", interrupted)
    code, output = run(*arguments)
    assert code == 130
    assert "goes on from there" in " ".join(output.split())
    assert run("table", folder)[0] == 0
    assert run(*arguments)[0] == 0
    assert calls[2:] == calls[1:2], "the first item was not measured again"


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from cachecraft import api

    def full(self: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "table.csv")

    monkeypatch.setattr(api.Evaluation, "export", full)
    code, output = run(*RUN, "--policy", "knorm", "--run", tmp_path / "run")
    assert code == 2
    assert "No space left on device table.csv; free some space" in " ".join(output.split())


def test_policies_lists_every_built_in() -> None:
    code, output = run("policies")
    assert code == 0
    assert all(name in output for name in ("knorm", "snapkv", "frc", "2404.14469", "O(T^2)"))


def test_help_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    code = "import sys, cachecraft.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
