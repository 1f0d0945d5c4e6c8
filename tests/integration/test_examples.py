"""The examples do what they say, on the default model."""

import runpy
import sys
from pathlib import Path

import pytest

from cachecraft.policy.check import check_policy
from cachecraft.policy.contract import load_policy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.integration


def run(name: str, *arguments: str) -> None:
    argv = sys.argv
    try:
        sys.argv = [name, *arguments]
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = argv


def test_a_compressed_text_answers_its_questions(capsys: pytest.CaptureFixture[str]) -> None:
    run("compress_and_ask.py")
    told = capsys.readouterr().out
    assert "red cabinet" in told
    assert "six" in told


def test_a_batch_of_prompts_is_answered_from_compressed_caches(capsys: pytest.CaptureFixture[str]) -> None:
    run("generate_batch.py")
    told = capsys.readouterr().out
    assert "red cabinet" in told
    assert "six" in told


def test_policies_can_be_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("compare_policies.py", "1")
    assert {"full", "my_policy", "keydiff", "random"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }


def test_the_example_policy_keeps_the_contract() -> None:
    assert check_policy(load_policy(str(EXAMPLES / "my_policy.py"))) == []
