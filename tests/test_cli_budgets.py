"""`cachecraft budgets` as a person meets it: a table, a file that other commands take, one sentence for bad input."""

from pathlib import Path

import pytest

from tests.command_line import run

SMALL = ["--length", "360", "--samples", "1", "--tasks", "ruler:niah_single_1", "--iterations", "1", "--held-out", "0"]


pytestmark = [pytest.mark.system, pytest.mark.usefixtures("brief_answers", "tiny_on_command_line")]


def test_what_is_printed_leads_to_the_same_measurement_after_a_search_by_ratio(tmp_path: Path) -> None:
    given = [*SMALL, "--ratio", "0.9", "--population", "4", "--selector", "chunks:4", "--run", tmp_path / "b2"]
    code, output = run("budgets", *given)
    assert code == 0 and "--selector chunks:4 --allocation" in output and "--ratio 0.9 …" in output
    assert '"selector": "chunks:4"' in (tmp_path / "b2" / "budgets.json").read_text()
    code, output = run("budgets", *given[:-4], "--run", tmp_path / "b2")
    assert code == 2 and "selector 'chunks:4'" in output.replace("\n", " ")


def test_a_search_prints_its_table_and_says_how_to_use_what_it_found(tmp_path: Path) -> None:
    folder = tmp_path / "b1"
    code, output = run("budgets", *SMALL, "--target", "24", "--population", "4", "--heads", "adaptive", "--run", folder)
    assert code == 0
    assert "evolkv" in output and "reversed_pyramid" in output and f"--allocation {folder}" in output.replace("\n", "")
    assert {"budgets.json", "budgets.png", "budgets.svg", "run.yaml", "run.sqlite"} <= {
        p.name for p in folder.iterdir()
    }
    again = ["evaluate", "--policy", "keydiff", "--keep", "24", "--length", "360", "--samples", "1"]
    again += ["--scoring", "likelihood", "--references", "none", "--run", tmp_path / "run"]
    code, output = run(*again, "--allocation", folder / "budgets.json", "--allocation", "uniform")
    assert code == 0 and "keydiff [b1]" in output and "keydiff [uniform]" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Give one of --target"),
        (["--target", "24", "--ratio", "0.5"], "Give one of --target"),
        (["--target", "many"], "'many' is not a number"),
        (["--ratio", "1"], "at least 0 and below 1"),
        (["--target", "9000"], "leaves nothing to evict"),
        (["--target", "24", "--lambda", "much"], "'much' is not a number"),
        (["--target", "24", "--gamma", "nan"], "γ is nan"),
        (["--target", "24", "--samples", "0"], "at least 1"),
        (["--target", "24", "--tasks", "ruler:qa_1"], "cannot be made"),
        (["--target", "24", "--policy", "knrm"], "did you mean knorm"),
        (["--target", "24", "--granularity", "token"], "choose layer or head"),
        (["--target", "24", "--fitness", "rouge"], "choose likelihood or answer"),
        (["--target", "24", "--population", "0"], "A population of 0"),
        (["--target", "24", "--lambda", "10", "--gamma", "2"], "worth less than nothing"),
        (["--target", "24", "--completions", "32,0"], "completed to 0 entries"),
        (["--target", "24", "--completions", "9000"], "completed to 9000 entries"),
        (["--target", "24", "--heads", "adaptive", "--granularity", "head"], "choose one of the two"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    code, output = run("budgets", "--length", "360", "--run", tmp_path / "no", *arguments)
    assert code == 2
    assert sentence in output.replace("\n", " ")
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("budgets", "sentence"),
    [
        ("[1, 2, 3]", "for 3 layers, but this model has 2"),
        ("[-1, 2]", "-1 is no number"),
        ("[0, 0]", "are zero"),
    ],
)
def test_budgets_that_do_not_fit_are_one_sentence(tmp_path: Path, budgets: str, sentence: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(f'{{"format": "cachecraft-budgets-1", "budgets": {budgets}}}')
    given = ["evaluate", "--policy", "knorm", "--keep", "24", "--run", tmp_path / "no", "--allocation", path]
    code, output = run(*given)
    assert code == 2 and sentence in output.replace("\n", " ")
    assert not (tmp_path / "no").exists()
