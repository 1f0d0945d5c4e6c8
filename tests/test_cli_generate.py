"""`cachecraft generate` as a person meets it: an answer, what it took, one sentence for bad input, Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cachecraft import models
from cachecraft.cli import app
from cachecraft.models import LoadedModel
from cachecraft.runtime.context import prefill

TEXT = "The grass is green. The sky is blue. One of the special magic numbers for hidden-key is: 1234567.\n" * 3
QUESTION = "What is the number?"
RUN = ["generate", "--model", "tiny", "--max-new-tokens", "12"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tiny_llama, tiny_tokenizer) -> LoadedModel:
    """`--model` gives the tiny model."""
    loaded = LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "r0", "float32", "cpu")
    monkeypatch.setattr(models, "load", lambda spec, **options: loaded)
    return loaded


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def run(*arguments: str | Path, **settings: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*RUN, *map(str, arguments)], **settings)  # type: ignore[arg-type]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_the_answer_is_that_of_the_compressed_context_and_its_cost_is_told(tiny: LoadedModel, book: Path) -> None:
    context = prefill(tiny.model, tiny.tokenizer, TEXT, policy="knorm", ratio=0.75)
    wanted = context.ask(QUESTION, max_new_tokens=12)
    code, told, said = run("--policy", "knorm", "--ratio", "0.75", "--file", book, QUESTION)
    assert (code, told) == (0, wanted + "\n")
    assert f"cache {context.full_bytes / 1e3:.1f} kB before, {context.bytes / 1e3:.1f} kB after (25 % kept)" in said
    assert re.search(
        r"first token after \d+\.\d\d s, scoring \d+\.\d\d s of it; 12 tokens, \d+\.\d tokens a second", said
    )
    assert "\x1b" not in told + said


def test_a_text_may_come_from_standard_input(book: Path) -> None:
    _, wanted, _ = run("--keep", "9", "--file", book, QUESTION)
    assert run("--keep", "9", "--file", "-", QUESTION, input=TEXT)[:2] == (0, wanted)


def test_without_a_file_the_question_is_the_whole_prompt(tiny: LoadedModel) -> None:
    whole = tiny.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
    )
    ids = tiny.tokenizer(whole, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False)
    out = tiny.model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    code, told, said = run("--policy", "snapkv", "--ratio", "0", QUESTION)
    assert (code, told) == (0, tiny.tokenizer.decode(out, skip_special_tokens=True) + "\n")
    tokens = ids["input_ids"].shape[1]
    assert f"prompt of {tokens} tokens" in said and "(100 % kept)" in said
    _, _, said = run("--policy", "knorm", "--ratio", "0.9", QUESTION)
    kept = (tokens - 8) // 10 + 8
    assert f"({100 * kept / tokens:.0f} % kept)" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--file", "missing.txt"], "missing.txt cannot be read: No such file or directory"),
        (["--file", "."], "cannot be read: Is a directory"),
        (["--file", "empty.txt"], "empty.txt is empty"),
        (["--file", "latin.txt"], "latin.txt is not UTF-8 text"),
        (["--file", "binary.bin"], "binary.bin is binary"),
        (["--file", "-"], "Standard input is empty"),
        (["--file", "long.txt"], "more than the model's context of 4096"),
        (["--policy", "keydif"], "did you mean keydiff"),
        (["--selector", "chunk:3"], "did you mean chunks"),
        (["--ratio", "1.5"], "at least 0 and below 1"),
        (["--keep", "4"], "give exactly one"),
        (["--max-new-tokens", "0"], "--max-new-tokens be at least 1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text(" \n")
    Path("latin.txt").write_bytes("déjà vu".encode("latin-1"))
    Path("binary.bin").write_bytes(b"ab\0cd")
    Path("long.txt").write_text(TEXT * 50)
    code, told, said = run("--ratio", "0.5", *arguments, QUESTION)
    assert (code, told) == (2, "")
    assert sentence in said and said.count("Error:") == 1


def test_a_budget_and_a_question_are_asked_for() -> None:
    assert run(QUESTION)[0] == 2
    assert "How much stays?" in run(QUESTION)[2]
    assert "The question is empty" in run("--ratio", "0.5", " ")[2]


def test_ctrl_c_while_answering_ends_with_130(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachecraft import cli_generate

    def interrupted(piece: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_generate, "_tell", interrupted)
    code, _, said = run("--ratio", "0.5", "--file", book, QUESTION)
    assert code == 130
    assert "Interrupted." in said


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_while_reading_standard_input_ends_with_130() -> None:
    command = [sys.executable, "-m", "cachecraft.cli", "generate", "--ratio", "0.5", "--file", "-", QUESTION]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdin is not None
    process.stdin.write(b"more than a pipe holds " * 20_000)  # so that this returns only once it is being read
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Interrupted" in said and b"Traceback" not in said
