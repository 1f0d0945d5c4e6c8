"""Runs over benchmark items on a tiny random model: sweeps over lengths, limits, what is left out, regimes, maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import build_tokenizer
from tests.families import build_model
from tests.tasks.benchmark_data import write_benchmarks, write_essay

from cachecraft.api import Evaluation, open_evaluation
from cachecraft.errors import CacheCraftError, RunError, TaskError
from cachecraft.evaluation import measure
from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.grid import evaluate
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Progress, Settings
from cachecraft.reporting.needle_map import spots
from cachecraft.reporting.tables import notes
from cachecraft.runtime.structure import ModelStructure


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(ModelStructure.of(build_model("llama")), build_tokenizer(), "tiny", "r0", "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks") / "data")


def measured(subject: Subject, run: Path, **changes: Any) -> Evaluation:
    given: dict[str, Any] = {"policies": ("knorm",), "budgets": (Budget(ratio=0.5),), "references": ("full",)}
    given |= {"scoring": ("likelihood",), "samples": 1}
    evaluate(subject, Settings(**(given | changes)), run)[0].close()
    return open_evaluation(run)


def test_a_sweep_is_one_run_with_a_table_for_each_length_and_may_grow(subject: Subject, tmp_path: Path) -> None:
    essay = write_essay(tmp_path / "essay.txt")
    asked: dict[str, Any] = {"tasks": ("needle:0", "needle:100"), "scoring": ("answer",), "essays": (str(essay),)}
    first = measured(subject, tmp_path / "run", length=600, **asked)
    assert first.lengths == (600,)
    both = measured(subject, tmp_path / "run", length=(600, 700), **asked)
    assert both.lengths == (600, 700) and both.settings["length"] == [600, 700]
    assert [summary.length for summary in both.summaries()] == [600, 700]
    assert len(both.results) == 2 * 2 * 2
    cells = spots(both.results, both.texts)
    assert {(each.depth, each.length, each.items) for each in cells} == {
        (d, n, 1) for d in (0, 100) for n in (600, 700)
    }


def test_limit_takes_what_there_is_and_skip_long_says_what_it_left_out(
    subject: Subject, tmp_path: Path, folder: Path
) -> None:
    asked: dict[str, Any] = {"tasks": ("kv_retrieval", "longeval"), "data": (str(folder),), "split": "all", "limit": 9}
    found = measured(subject, tmp_path / "run", length=600, **asked)
    assert found.summary().items == {"kv_retrieval": 3, "longeval": 3}
    cut = measured(subject, tmp_path / "cut", tasks=("longbench:qasper",), data=(str(folder),), length=1250, limit=2)
    assert "Cut to that length: longbench:qasper 2 of 2 looked at." in notes(cut.summary(), cut.settings)
    with pytest.raises(TaskError, match=r"holds no item .* fits 150 tokens \(3 longer ones are left out\)"):
        measured(subject, tmp_path / "none", length=150, skip_long=True, **asked)
    part = measured(subject, tmp_path / "part", length=250, skip_long=True, **asked)
    assert part.summary().items == {"longeval": 3}, "a task without an item that fits does not stop the others"
    assert part.settings["skipped"] == {"kv_retrieval": "has no item that fits 250 tokens"}
    assert "Left out as longer than that: kv_retrieval 3 of 3 looked at." in notes(part.summary(), part.settings)
    with pytest.raises(RunError, match="skip_long of longeval True, not False"):
        measured(subject, tmp_path / "part", length=250, **(asked | {"tasks": ("longeval",)}))
    with pytest.raises(TaskError, match="holds 3 items for split all"):
        measured(subject, tmp_path / "few", length=600, **(asked | {"limit": None, "samples": 9}))


def test_a_rendered_prompt_is_refused_in_the_agnostic_regime(subject: Subject, tmp_path: Path, folder: Path) -> None:
    asked: dict[str, Any] = {"tasks": ("mini_longbench:hotpotqa",), "data": (str(folder),), "length": 900}
    with pytest.raises(TaskError, match=r"do not say what is context and what is question.* ask for --regime aware"):
        measured(subject, tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()
    assert measured(subject, tmp_path / "run", regime="aware", **asked).results


def test_a_run_over_a_benchmark_goes_on_where_it_stopped(subject: Subject, tmp_path: Path, folder: Path) -> None:
    asked: dict[str, Any] = {"tasks": ("longeval",), "data": (str(folder),), "split": "all", "length": 600, "limit": 3}
    measured(subject, tmp_path / "run", **asked)
    seen: list[Progress] = []
    settings = Settings(("knorm",), (Budget(ratio=0.5),), scoring=("likelihood",), references=("full",), **asked)
    evaluate(subject, settings, tmp_path / "run", progress=seen.append)[0].close()
    assert [each.cells for each in seen] == [0, 0, 0] and seen[-1].total == 3


@pytest.mark.parametrize("wrong", [{"length": ()}, {"length": (512, 0)}, {"limit": 0}, {"references": ("ful",)}])
def test_lengths_and_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CacheCraftError):
        Settings(("knorm",), (Budget(ratio=0.5),), ("needle",), **wrong)


@pytest.mark.parametrize("references", [("full",), ()])
def test_fidelity_is_scored_on_the_full_caches_answer_up_to_the_stop_string(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, references: tuple[str, ...]
) -> None:
    row = {"context": "The sky is blue. " * 9, "question": "What?", "answers": ["blue"], "metric": "qa_f1"}

    def run(name: str, stop: list[str]) -> Evaluation:
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps({**row, "stop": stop, "max_new_tokens": 30}) + "\n")
        return measured(
            subject,
            tmp_path / name,
            tasks=(str(file),),
            scoring=("answer", "fidelity"),
            split="all",
            length=400,
            limit=1,
            references=("full",) if not stop else references,
        )

    free = next(each for each in run("free", []).results if (each.label, each.scoring) == ("full", "answer"))
    stop = free.detail["answer"][6:9]
    continued: list[list[int]] = []
    plain = measure.fidelities
    monkeypatch.setattr(measure, "fidelities", lambda *given: continued.append(given[-1]) or plain(*given))
    found = run("cut", [stop])
    text = subject.tokenizer.decode(continued[0])
    assert stop in text and text.index(stop) + len(stop) > len(text) - 8, "nothing of what comes after it"
    answer = free.detail["answer"]
    for each in found.results:
        if (each.label, each.scoring) == ("full", "answer"):
            assert each.detail["answer"] == answer[: answer.index(stop)]
    assert {each.scoring for each in found.results if each.label == "knorm"} == {"answer", "fidelity"}
