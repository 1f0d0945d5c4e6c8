"""The report: all of a run on one page that needs nothing else, nothing of a run that acts, runs as they stand."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sqlite3
import time
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from rich.console import Console
from tests import command_line
from tests.conftest import build_tokenizer
from tests.families import build_model
from tests.reporting.conftest import ATTACK, BREAKOUT, budget_run, discovery_run, evaluation_run

from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.positions import measure_positions, read_positions, write_positions
from cachecraft.evaluation.selections import Subject
from cachecraft.reporting.budgets import falling_like
from cachecraft.reporting.needle_map import Spot, print_maps
from cachecraft.reporting.report.budgets import BudgetSection, budget_section
from cachecraft.reporting.report.discovery import discovery_section
from cachecraft.reporting.report.page import build_report, write_report
from cachecraft.reporting.report.runs import opened, stamp
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
    tables = {each.get("data-csv") for tag, each in seen.elements if tag == "table"}
    assert {"r2-0-layers", "r2-0-divisions", "r2-0-vectors", "r1-1-archive-1", "r1-1-progress"} <= tables
    assert '<td data-v="18.0">18.0</td>' in page
    assert "<dd>16 entries kept</dd>" in page and "18 16 16 14" in page


def fitness(run: Path, rows: list[tuple[str, str, float]], **settings: Any) -> BudgetSection:
    """A search that has measured so much and is not finished."""
    budget_run(run, finished=False)
    path = run / "run.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | settings))
    with closing(sqlite3.connect(run / "run.sqlite")) as connection, connection:
        connection.execute("DELETE FROM fitness")
        connection.executemany("INSERT INTO fitness VALUES (?,?,?)", rows)
    with opened(run) as found:
        section = budget_section(found, "x")
    assert section is not None
    return section


def vector(*budgets: int) -> str:
    return json.dumps([budgets, []])


def test_only_vectors_measured_on_all_search_items_count_and_the_objective_ranks_them(tmp_path: Path) -> None:
    rows = [(vector(16, 16), item, 0.4) for item in ("a", "b")]
    rows += [(vector(24, 24), item, 0.5) for item in ("a", "b")]  # fitter, but half as large again
    rows += [(vector(20, 12), item, 0.45) for item in ("a", "b")]
    rows += [(vector(4, 28), "a", 1.0)]  # lucky on the one item that it was measured on
    rows += [("id of uniform", item, 0.4) for item in ("a", "b", "held out")]
    found = fitness(tmp_path / "run", rows)
    assert [each.number for each in found.vectors] == [1, 2, 3]
    assert [round(each.objective, 4) for each in found.vectors] == [0.52, 0.575, 0.585]
    assert [each.found for each in found.layers] == [20.0, 12.0]
    assert dict(found.facts)["searched on"].endswith("2 items") and dict(found.facts)["vectors measured"] == "3"
    assert fitness(tmp_path / "begun", rows[:1], samples=2).vectors == ()  # the first one on its way through the items


def test_flat_vectors_of_heads_give_no_bars_and_a_pyramid_keeps_no_more_than_there_is(tmp_path: Path) -> None:
    rows = [(vector(16, 16, 16, 16), "a", 0.4)]
    found = fitness(tmp_path / "run", rows, granularity="head")
    assert not found.bars and found.progress and found.vectors[0].entries == "16 16 16 16"
    assert falling_like([16.0] * 4, 20) == [20.0, 17.0, 15.0, 12.0]
    assert falling_like([16.0] * 4, None)[0] > 30


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


def test_an_evaluation_is_unfinished_by_what_its_plan_says(tmp_path: Path) -> None:
    plan = {"ruler:vt at 64": 2, "ruler:cwe at 64": 3}
    assert "4 of 5 items are measured" in build_report([evaluation_run(tmp_path / "some", items=2, planned=plan)])
    plan["ruler:cwe at 64"] = 2  # all that the benchmark has
    for name, changes in (("all", {"planned": plan}), ("older", {})):
        page = build_report([evaluation_run(tmp_path / name, items=2, samples=500, **changes)])
        assert "items are measured for every row" not in page


def test_a_discovery_is_unfinished_until_it_has_written_its_policies(tmp_path: Path) -> None:
    folder = discovery_run(tmp_path / "run", 16)
    assert "The search is going on" not in build_report([folder])
    before = stamp([folder])
    shutil.rmtree(folder / "policies")
    assert "stopped after 2 batches: it has written no policies yet" in build_report([folder])
    assert stamp([folder]) != before
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute("UPDATE generations SET closed = 0 WHERE number = 1")
        connection.execute("INSERT INTO rescorings VALUES (1, 2, 'seen', '')")
    assert "in the middle of batch 2: 1 candidate has to be measured again." in build_report([folder])


def test_a_cost_of_which_a_part_is_unknown_is_unknown(tmp_path: Path) -> None:
    folder = discovery_run(tmp_path / "run", 16)
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute("INSERT INTO llm_calls VALUES (2, 1, 3, 'big-model', 'done', 'parsed', '', 10, 7, 0.5, 2.0)")
    with opened(folder) as run:
        found = discovery_section(run, "x")
    assert found is not None
    assert found.calls == (("big-model", "parsed", 2, 20, None, None, 4.0),)
    assert dict(found.costs)["money"] == "$0.0000"
    assert dict(found.costs)["tokens to and from language models"] == "0 and 0, and unknown for 1 calls"


def test_several_lengths_are_told_apart(tmp_path: Path) -> None:
    page = build_report([evaluation_run(tmp_path / "run", lengths=(64, 128))])
    for text in ("Score: answer, 64 tokens", "Score: answer, 128 tokens", "0.75 evicted, 128 tokens"):
        assert text in page
    seen = Page(page)
    names = [each["data-csv"] for tag, each in seen.elements if tag == "table" and "data-csv" in each]
    assert len(names) == len(set(names)) and {"r0-0-answer-64", "r0-0-answer-128"} <= set(names)
    items = seen.blocks["data-r0-0-items"]["items"]
    assert [item["length"] for item in items[:8]] == [64] * 4 + [128] * 4
    assert items[0]["context"] == "Of 64."  # once, where it is shorter than its two ends


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


def test_a_folder_that_is_no_run_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("command: evaluate\n")
    for folder, lacks in ((tmp_path, "it has no run.sqlite."), (tmp_path / "absent", "there is no such folder.")):
        code, output = run("report", folder)
        assert code == 2 and lacks in output


def test_a_command_whose_report_cannot_be_written_warns_and_goes_on(tmp_path: Path) -> None:
    folder = evaluation_run(tmp_path / "run")
    (folder / "report.html").mkdir()
    code, output = run("table", folder)
    assert code == 0 and "Warning: The report" in output and "table.csv" in output
    assert "report.html)" not in output


def test_names_in_brackets_are_shown_and_not_taken_for_markup(tmp_path: Path) -> None:
    folder = evaluation_run(tmp_path / "run")
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute("UPDATE results SET label = 'mine [tokens]' WHERE label = 'keydiff'")
    for arguments in (
        ["pitfalls", folder],
        ["table", folder, "--against", "mine [tokens]"],
        ["show", folder, "--policy", "mine [tokens]", "--task", "vt", "--retention"],
    ):
        code, output = run(*arguments)
        assert code == 0 and "[tokens]" in output, arguments  # a name may wrap in a narrow terminal
        assert "minus mine [tokens]" in output or "--against" not in arguments
    spot = Spot("mine [tokens]", "0.5", 50, 64, 1, 1.0, 1.0, 1.0)
    console = Console(file=io.StringIO(), width=80)
    print_maps(console, [spot])
    assert "mine [tokens] at 0.5:" in console.file.getvalue()  # type: ignore[attr-defined]
    policy = tmp_path / "mine.py"
    policy.write_text("def score_tokens(f):\n    raise ValueError('no [tokens] here')\n")
    assert "no [tokens] here" in run("check", policy)[1]


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
    bad = tmp_path / "bad.py"
    bad.write_text("def score_tokens(f):\n    return f.keys.norm(dim=-1) * float('nan')\n")
    found = measure_positions(subject, item, ["streaming_llm", "knorm", str(bad)], Budget(ratio=0.75), trust=True)
    assert list(found.rejected) == ["bad"] and found.layers == list(subject.structure.compressed)
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
    assert "bad was rejected: " in page and page.count('class="layers"') == 2
    assert '<th title="layer 1, head 0">' in page and 'data-csv="r0-0-positions"' in page
