"""The grid on a tiny random model: complete, resumable, indifferent to order and company."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import build_model, build_tokenizer
from tests.tasks.question_data import squad

from cachecraft.api import open_evaluation
from cachecraft.errors import CacheCraftError, ModelError, RunError, TaskError
from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.grid import evaluate
from cachecraft.evaluation.measure import split_prompt
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Progress, Settings
from cachecraft.evaluation.store import Result
from cachecraft.runtime.structure import ModelStructure
from cachecraft.tasks.prompt import Prompt

LENGTH = 700


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(ModelStructure.of(build_model("llama")), build_tokenizer(), "tiny", "r0", "float32")


def settings(**changes: Any) -> Settings:
    given: dict[str, Any] = {
        "policies": ("knorm", "snapkv"),
        "budgets": (Budget(ratio=0.5), Budget(keep=16)),
        "tasks": ("ruler:niah_single_1",),
        "length": LENGTH,
        "samples": 2,
    }
    return Settings(**(given | changes))


def measured(subject: Subject, folder: Path, **changes: Any) -> dict[str, Result]:
    store, ids = evaluate(subject, settings(**changes), folder)
    found = {result.id: result for result in store.results(ids)}
    store.close()
    assert set(found) == set(ids)
    return found


def test_every_cell_of_every_item_is_measured(subject: Subject, tmp_path: Path) -> None:
    found = measured(subject, tmp_path / "run", scoring=("answer", "likelihood", "fidelity"))
    cells = 2 * 2 + 1 + 2 + 3 * 2  # policies, full, hindsight, random draws
    assert len(found) == cells * 2 * 3
    assert {result.state for result in found.values()} == {"ok"}


def test_bytes_kept_are_the_bytes_asked_for(subject: Subject, tmp_path: Path) -> None:
    for result in measured(subject, tmp_path / "run").values():
        kept = {"0": result.tokens, "0.5": result.tokens // 2, "keep 16": 16}[result.budget]
        assert result.kept_bytes * result.tokens == result.full_bytes * kept


def test_the_full_cache_agrees_with_itself(subject: Subject, tmp_path: Path) -> None:
    for result in measured(subject, tmp_path / "run", scoring=("fidelity",)).values():
        if result.label == "full":
            assert result.value == 1.0
            assert result.detail["kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_repeated_run_measures_nothing_again(subject: Subject, tmp_path: Path) -> None:
    measured(subject, tmp_path / "run")
    seen: list[Progress] = []
    store, _ = evaluate(subject, settings(), tmp_path / "run", progress=seen.append)
    store.close()
    assert [progress.cells for progress in seen] == [0, 0]


def test_an_interrupted_run_goes_on_with_the_item_in_flight(subject: Subject, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(subject, settings(), tmp_path / "run", progress=stop)
    seen: list[Progress] = []
    store, ids = evaluate(subject, settings(), tmp_path / "run", progress=seen.append)
    assert [progress.cells > 0 for progress in seen] == [False, True]
    assert set(ids) == {result.id for result in store.results()}
    store.close()


def test_a_result_does_not_depend_on_what_else_is_measured(subject: Subject, tmp_path: Path) -> None:
    both = measured(subject, tmp_path / "both", scoring=("likelihood",))
    alone = measured(subject, tmp_path / "alone", scoring=("likelihood",), policies=("snapkv",), references=())
    turned = measured(subject, tmp_path / "turned", scoring=("likelihood",), policies=("snapkv", "knorm"))
    assert alone
    for name, result in alone.items():
        assert both[name].value == pytest.approx(result.value, abs=1e-5)
        assert turned[name].value == pytest.approx(result.value, abs=1e-5)


def test_a_policy_that_breaks_the_contract_is_a_state_with_a_reason(subject: Subject, tmp_path: Path) -> None:
    bad = tmp_path / "nan.py"
    bad.write_text("def score_tokens(f):\n    return f.keys.norm(dim=-1) * float('nan')\n")
    found = measured(subject, tmp_path / "run", policies=(str(bad), "knorm"))
    rejected = [result for result in found.values() if result.label == "nan"]
    assert {result.state for result in rejected} == {"rejected"}
    assert all(result.value is None and "nan" in result.reason for result in rejected)
    assert all(result.state == "ok" for result in found.values() if result.label == "knorm")


@pytest.mark.parametrize("trust", [False, True])
def test_a_policy_file_decides_the_same_in_the_sandbox_and_in_process(
    subject: Subject, tmp_path: Path, trust: bool
) -> None:
    own = tmp_path / "own.py"
    own.write_text("def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n")
    asked = settings(policies=(str(own), "knorm"), allocations=("uniform", "adaptive", "pyramid"))
    store, ids = evaluate(subject, asked, tmp_path / "run", trust=trust)
    found = {(each.label, each.budget, each.item): each for each in store.results(ids)}
    store.close()
    assert sum(label.startswith("own") for label, *_ in found) == 3 * 2 * 2
    for (label, budget, item), result in found.items():
        if label.startswith("own"):
            twin = found[label.replace("own", "knorm"), budget, item]
            assert result.state == "ok", result.reason
            assert (result.value, result.kept_bytes, result.detail) == (twin.value, twin.kept_bytes, twin.detail)


def test_a_policy_file_that_reaches_for_more_is_rejected_and_reaches_nothing(subject: Subject, tmp_path: Path) -> None:
    secret = tmp_path / "touched"
    spy = tmp_path / "spy.py"
    spy.write_text(f"open({str(secret)!r}, 'w').close()\n\ndef score_tokens(f):\n    return f.keys[..., 0]\n")
    found = measured(subject, tmp_path / "run", policies=(str(spy), "knorm"))
    rejected = [result for result in found.values() if result.label == "spy"]
    assert {result.state for result in rejected} == {"rejected"}
    assert all(result.reason for result in rejected)
    assert not secret.exists()
    assert all(result.state == "ok" for result in found.values() if result.label == "knorm")


def test_a_policy_that_allocates_keeps_the_exact_total(subject: Subject, tmp_path: Path) -> None:
    slope = tmp_path / "slope.py"
    slope.write_text(
        "import torch\n"
        "def score_tokens(f):\n    return f.values.norm(dim=-1)\n"
        "def allocate(scores, total, floor):\n"
        "    counts = torch.full((len(scores), scores[0].shape[0]), floor)\n"
        "    counts[0] = (total - counts[1:].sum()) // counts.shape[1]\n"
        "    counts[0, 0] += total - counts.sum()\n"
        "    return counts\n"
    )
    for result in measured(
        subject, tmp_path / "run", policies=(str(slope),), references=(), budgets=(Budget(keep=16),)
    ).values():
        assert result.state == "ok", result.reason
        assert result.kept_bytes * result.tokens == result.full_bytes * 16


def test_regimes_differ_in_what_is_compressed() -> None:
    prompt = Prompt((1, 2, 3), (4, 5), (6,))
    assert split_prompt(prompt, "agnostic") == ((1, 2, 3), (4, 5, 6))
    assert split_prompt(prompt, "aware") == ((1, 2, 3, 4, 5), (6,))


def test_a_prompt_without_question_and_tail_holds_back_its_last_tokens() -> None:
    before, after = split_prompt(Prompt(tuple(range(20)), (), ()), "agnostic")
    assert (len(before), len(after)) == (12, 8)


def test_nothing_is_left_behind_when_the_length_is_too_short(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        evaluate(subject, settings(length=40), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_length_beyond_the_models_context_is_refused(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not fit the model's context"):
        evaluate(subject, settings(length=100_000), tmp_path / "run")


def test_a_folder_of_another_seed_is_refused(subject: Subject, tmp_path: Path) -> None:
    measured(subject, tmp_path / "run", samples=1)
    with pytest.raises(RunError, match="seed 0, not 1"):
        evaluate(subject, settings(seed=1), tmp_path / "run")


def test_a_folder_of_another_seeding_of_rulers_tasks_is_refused(subject: Subject, tmp_path: Path) -> None:
    measured(subject, tmp_path / "run", samples=1)
    with pytest.raises(RunError, match="ruler_compat False, not True"):
        evaluate(subject, settings(ruler_compat=True), tmp_path / "run")


def squad_file(folder: Path, name: str, **changes: int) -> str:
    """A small file in SQuAD's form, its texts short enough for the tiny tokenizer."""
    (folder / name).write_text(json.dumps(squad(**changes)))
    return str(folder / name)


def test_tasks_without_data_are_skipped_and_recorded_until_the_data_is_there(subject: Subject, tmp_path: Path) -> None:
    few: dict[str, Any] = {"policies": (), "budgets": (Budget(ratio=0.0),), "references": ("full",), "samples": 1}
    few |= {"length": 2000, "scoring": ("likelihood",)}
    store, _ = evaluate(subject, settings(tasks=("ruler",), **few), tmp_path / "run")
    assert set(store.settings["skipped"]) == {"ruler:qa_1", "ruler:qa_2"}
    assert len({result.task for result in store.results()}) == 11
    store.close()
    data = (squad_file(tmp_path, "dev.json"),)
    store, _ = evaluate(subject, settings(tasks=("ruler:qa_1",), data=data, **few), tmp_path / "run")
    assert len({result.task for result in store.results()}) == 12
    assert store.settings["data"] == list(data)
    store.close()
    skipped = open_evaluation(tmp_path / "run").summary().skipped
    assert set(skipped) == {"ruler:qa_2"}


def test_a_folder_measured_on_other_data_is_refused(subject: Subject, tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> None:
        asked: dict[str, Any] = {"tasks": ("ruler:qa_1",), "policies": (), "references": ("full",), "samples": 1}
        asked |= {"data": (name,), "length": 1200, "scoring": ("likelihood",)}
        evaluate(subject, settings(**(asked | changes)), tmp_path / "run")[0].close()

    run(squad_file(tmp_path, "dev.json"))
    run(squad_file(tmp_path, "moved.json"))  # the same text under another name is the same data
    other = squad_file(tmp_path, "other.json", first=500)
    with pytest.raises(
        RunError, match=r"sources of ruler:qa_1 '[0-9a-f]{64}', not '[0-9a-f]{64}'; name another folder"
    ):
        run(other)
    run(other, tasks=("ruler:niah_single_1",))  # no task of it reads the data


def test_more_samples_than_the_data_has_are_refused_before_anything_is_measured(
    subject: Subject, tmp_path: Path
) -> None:
    data = (squad_file(tmp_path, "dev.json", paragraphs=2),)
    asked = settings(tasks=("ruler:qa_1",), data=data, length=900, samples=9)
    with pytest.raises(TaskError, match="holds 8 questions for split test that fit 900 tokens"):
        evaluate(subject, asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "wrong", [{"regime": "both"}, {"scoring": ("rouge",)}, {"split": "train"}, {"samples": 0}, {"budgets": ()}]
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CacheCraftError):
        settings(**wrong)
