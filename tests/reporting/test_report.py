"""The report: all of a run on one page that needs nothing else, nothing of a run that acts, runs as they stand."""

from __future__ import annotations

import json
import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests import command_line
from tests.conftest import build_tokenizer
from tests.families import build_model
from tests.reporting.conftest import ATTACK, BREAKOUT, budget_run, discovery_run, evaluation_run

from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.positions import measure_positions, read_positions, write_positions
from cachecraft.evaluation.selections import Subject
from cachecraft.reporting.report.page import build_report, write_report
from cachecraft.reporting.report.runs import stamp
from cachecraft.runtime.structure import ModelStructure
from cachecraft.tasks.registry import load_tasks


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the texts of data blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, Any] = {}
        self._block = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._block = str(dict(attrs).get("id")) if dict(attrs).get("type") == "application/json" else ""

    def handle_data(self, data: str) -> None:
        if self._block:
            self.blocks[self._block] = json.loads(data)
            self._block = ""


@pytest.fixture(scope="module")
def page(runs: dict[str, Path]) -> str:
    return build_report(list(runs.values()))


def test_one_file_needs_nothing_else_and_runs_no_script_but_its_own(page: str) -> None:
    seen = Page(page)
    for tag, attributes in seen.elements:
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    assert [attributes for tag, attributes in seen.elements if tag == "script" and "type" not in attributes] == [{}]
    (rule,) = [each["content"] for tag, each in seen.elements if each.get("http-equiv") == "Content-Security-Policy"]
    assert rule is not None
    assert "default-src 'none'" in rule and "connect-src 'none'" in rule and "unsafe-inline'; img" in rule


def test_what_a_run_says_is_text_and_never_markup(page: str) -> None:
    assert ATTACK not in page and BREAKOUT not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not [each for tag, each in Page(page).elements if each.get("src") == "x"]
    assert "</script" not in re.sub(r"</script>\n", "", page)  # no data block ends early


def test_an_evaluation_is_told_with_scores_tasks_segments_and_items(page: str) -> None:
    assert all(
        text in page for text in ("Score: answer", "Tasks by policies", "What was kept of each part", "rejected")
    )
    assert "<td>answer" not in page and 'data-csv="r0-0-answer"' in page
    items = Page(page).blocks["data-r0-0-items"]["items"]
    assert len(items) == 8
    assert {row[0] for row in items[0]["rows"]} == {"full", "keydiff", ATTACK, "lost"}


def test_a_discovery_is_told_with_its_candidates_and_its_test(page: str) -> None:
    data = Page(page).blocks["data-r1-1"]
    assert len(data["candidates"]) == 40
    tenth = data["candidates"][9]
    assert "\n".join(data["lines"][line] for line in tenth["src"]).startswith("def score_tokens(f):\n    part = 10 *")
    assert tenth["p"] and tenth["f"] and len(tenth["sc"]) == 4
    assert data["candidates"][10]["says"] == [["big-model", "parsed", BREAKOUT]]
    assert data["words"][data["candidates"][6]["s"]] == "rejected"
    for text in ("best known: keydiff", "stagnation", "rejected", "unknown", "discovery · test-0", "2 min"):
        assert text in page, text


def test_budgets_are_told_beside_uniform_and_pyramid(page: str) -> None:
    seen = Page(page)
    tables = [each.get("data-csv") for tag, each in seen.elements if tag == "table"]
    assert {"r2-0-layers", "r2-0-divisions", "r2-0-progress"} <= set(tables)
    assert '<td data-v="18.0">18.0</td>' in page


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: evaluation_run(folder, unfinished=True), "6 of 8 items are measured for every row"),
        (lambda folder: discovery_run(folder, 20, going_on=True), "stopped in the middle of batch 3"),
        (lambda folder: budget_run(folder, finished=False), "has written no budgets yet"),
    ],
)
def test_a_run_that_goes_on_is_told_as_it_stands_and_says_so(tmp_path: Path, make: Any, said: str) -> None:
    folder = make(tmp_path / "run")
    before = {path.name for path in folder.iterdir()}
    text = build_report([folder])
    assert said in text and "<svg" in text
    assert {path.name for path in folder.iterdir()} - before <= {"run.sqlite-wal", "run.sqlite-shm"}


def test_a_run_that_has_only_begun_gives_a_page(tmp_path: Path) -> None:
    for command in ("evaluate", "discover", "budgets", "other"):
        folder = tmp_path / command
        evaluation_run(folder, items=0)
        (folder / "run.yaml").write_text(f"command: {command}\n")
        assert "notice" in build_report([folder])


def test_five_thousand_candidates_fit_and_are_built_fast(tmp_path: Path) -> None:
    folder = discovery_run(tmp_path / "large", 5000)
    began = time.process_time()
    path = write_report([folder], tmp_path / "report.html")
    assert path.stat().st_size < 6_000_000
    assert time.process_time() - began < 15


def run(*arguments: str | Path) -> tuple[int, str]:
    """As the command line, its output without line breaks."""
    code, output = command_line.run(*arguments)
    return code, " ".join(output.split())


def test_the_command_writes_beside_the_run_or_where_it_is_told(runs: dict[str, Path], tmp_path: Path) -> None:
    code, output = run("report", runs["budgets"])
    assert code == 0 and (runs["budgets"] / "report.html").is_file() and "report.html" in output
    assert run("report", runs["budgets"], runs["evaluation"], "-o", tmp_path / "new" / "both.html")[0] == 0
    assert (tmp_path / "new" / "both.html").is_file()


def test_bad_input_is_one_sentence_and_exit_code_2(runs: dict[str, Path], tmp_path: Path) -> None:
    damaged = evaluation_run(tmp_path / "damaged", items=1)
    (damaged / "run.sqlite").write_bytes(b"no database at all" * 100)
    torn = budget_run(tmp_path / "torn")
    (torn / "positions.json").write_text("{")
    bad: list[tuple[list[str | Path], str]] = [
        (["report", tmp_path], "is not a run folder"),
        (["report", damaged], "cannot be read"),
        (["report", torn], "is damaged"),
        (["report", runs["budgets"], "-o", tmp_path], "is a folder"),
        (["report", runs["budgets"], "-o", damaged / "run.yaml" / "x.html"], "cannot be written"),
        (["report", runs["budgets"], "--policy", "keydiff"], "give --model"),
    ]
    for arguments, sentence in bad:
        code, output = run(*arguments)
        assert code == 2 and sentence in output, (arguments, output)


def test_a_stamp_changes_with_the_run_and_only_then(tmp_path: Path) -> None:
    folder = budget_run(tmp_path / "run")
    before = stamp([folder])
    assert stamp([folder]) == before
    os.utime(folder / "run.sqlite", (1, 1))
    assert stamp([folder]) != before


def test_kept_positions_are_measured_kept_and_drawn(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    subject = Subject(ModelStructure.of(build_model("llama")), tokenizer, "tiny", "r0", "float32")
    (task,) = load_tasks(["ruler:niah_single_1"])
    item = task.item(0, split="test", length=700, seed=0, tokenizer=tokenizer)
    found = measure_positions(subject, item, ["streaming_llm", "knorm"], Budget(ratio=0.75))
    tokens = len(found.tokens)
    mask = found.mask("streaming_llm")
    assert mask.shape == (found.rows, tokens)
    assert numpy.all(mask.sum(axis=1) == tokens // 4)
    assert mask[:, -10:].all() and not mask[:, tokens // 2].any()  # the newest stay, the middle goes
    assert found.segments["answer"] and set(found.segments["answer"]) <= set(found.segments["needle"])
    folder = budget_run(tmp_path / "run")
    write_positions(folder, found)
    assert read_positions(folder) == found
    page = build_report([folder])
    assert "Which positions are kept" in page and page.count("data:image/png;base64,") == 2
