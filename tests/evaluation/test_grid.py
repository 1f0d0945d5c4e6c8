"""The grid on a tiny random model: complete, resumable, indifferent to order and company."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import build_tokenizer
from tests.families import model_of
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

LENGTH = 360
pytestmark = pytest.mark.usefixtures("brief_answers")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(ModelStructure.of(model_of("llama")), build_tokenizer(), "tiny", "r0", "float32")


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


@pytest.fixture(scope="module")
def found(brief_answers: None, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """All cells by every scoring."""
    return measured(subject, tmp_path_factory.mktemp("grid") / "run", scoring=("answer", "likelihood", "fidelity"))


def test_every_cell_of_every_item_is_measured(found: dict[str, Result]) -> None:
    cells = 2 * 2 + 1 + 2 + 3 * 2  # policies, full, hindsight, random draws
    assert len(found) == cells * 2 * 3
    assert {result.state for result in found.values()} == {"ok"}


def test_bytes_kept_are_the_bytes_asked_for(found: dict[str, Result]) -> None:
    for result in found.values():
        kept = {"0": result.tokens, "0.5": result.tokens // 2, "keep 16": 16}[result.budget]
        assert result.kept_bytes * result.tokens == result.full_bytes * kept


def test_the_full_cache_agrees_with_itself(found: dict[str, Result]) -> None:
    for result in found.values():
        if (result.label, result.scoring) == ("full", "fidelity"):
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


FOREIGN = {
    "own": "def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n",
    "nan": "def score_tokens(f):\n    return f.keys.norm(dim=-1) * float('nan')\n",
    "spy": "open('TOUCHED', 'w').close()\n\ndef score_tokens(f):\n    return f.keys[..., 0]\n",
    "slope": "import torch\n"
    "def score_tokens(f):\n    return f.values.norm(dim=-1)\n"
    "def allocate(scores, total, floor):\n"
    "    counts = torch.full((len(scores), scores[0].shape[0]), floor)\n"
    "    counts[0] = (total - counts[1:].sum()) // counts.shape[1]\n"
    "    counts[0, 0] += total - counts.sum()\n"
    "    return counts\n",
}


def foreign(folder: Path, *names: str) -> tuple[str, ...]:
    """Policy files that did not come with CacheCraft."""
    for name in names:
        (folder / f"{name}.py").write_text(FOREIGN[name].replace("TOUCHED", str(folder / "touched")))
    return tuple(str(folder / f"{name}.py") for name in names)


@pytest.fixture(scope="module")
def apart(brief_answers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="module")
def sandboxed(subject: Subject, apart: Path) -> dict[str, list[Result]]:
    """What the files and a built-in policy came to in one run, by label."""
    found: dict[str, list[Result]] = {}
    for result in measured(
        subject, apart / "run", policies=(*foreign(apart, *FOREIGN), "knorm"), references=()
    ).values():
        found.setdefault(result.label, []).append(result)
    return found


def test_a_policy_that_breaks_the_contract_is_a_state_with_a_reason(sandboxed: dict[str, list[Result]]) -> None:
    assert {result.state for result in sandboxed["nan"]} == {"rejected"}
    assert all(result.value is None and "nan" in result.reason for result in sandboxed["nan"])
    assert {result.state for result in sandboxed["knorm"]} == {"ok"}


def test_a_policy_file_decides_the_same_in_the_sandbox_and_in_process(
    subject: Subject, tmp_path: Path, sandboxed: dict[str, list[Result]]
) -> None:
    asked = settings(policies=foreign(tmp_path, "own"), references=())
    store, ids = evaluate(subject, asked, tmp_path / "run", trust=True)
    trusted = list(store.results(ids))
    store.close()
    assert len(trusted) == len(sandboxed["own"]) == 4
    twins = {(each.budget, each.item): each for each in sandboxed["knorm"]}
    for result in (*trusted, *sandboxed["own"]):
        twin = twins[result.budget, result.item]
        assert (result.value, result.kept_bytes, result.detail) == (twin.value, twin.kept_bytes, twin.detail)


def test_an_allocation_divides_alike_in_the_sandbox_and_in_process(subject: Subject, tmp_path: Path) -> None:
    asked = settings(policies=(*foreign(tmp_path, "own"), "knorm"), allocations=("adaptive", "pyramid"), references=())
    store, ids = evaluate(subject, asked, tmp_path / "run")
    found = {(each.label, each.budget, each.item): each for each in store.results(ids)}
    store.close()
    mine = [key for key in found if key[0].startswith("own")]
    assert len(mine) == 2 * 2 * 2
    for label, budget, item in mine:
        twin, result = found[label.replace("own", "knorm"), budget, item], found[label, budget, item]
        assert result.state == "ok", result.reason
        assert (result.value, result.kept_bytes) == (twin.value, twin.kept_bytes)


def test_a_policy_file_that_reaches_for_more_is_rejected_and_reaches_nothing(
    apart: Path, sandboxed: dict[str, list[Result]]
) -> None:
    assert {result.state for result in sandboxed["spy"]} == {"rejected"}
    assert all(result.reason for result in sandboxed["spy"])
    assert not (apart / "touched").exists()


def test_a_policy_that_allocates_keeps_the_exact_total(sandboxed: dict[str, list[Result]]) -> None:
    for result in sandboxed["slope"]:
        assert result.state == "ok", result.reason
        kept = 16 if result.budget == "keep 16" else result.tokens // 2
        assert result.kept_bytes * result.tokens == result.full_bytes * kept


def test_regimes_differ_in_what_is_compressed() -> None:
    prompt = Prompt((1, 2, 3), (4, 5), (6,))
    assert split_prompt(prompt, "agnostic") == ((1, 2, 3), (4, 5, 6))
    assert split_prompt(prompt, "aware") == ((1, 2, 3, 4, 5), (6,))


def test_a_prompt_without_question_and_tail_holds_back_its_last_tokens() -> None:
    before, after = split_prompt(Prompt(tuple(range(20)), (), ()), "agnostic")
    assert (len(before), len(after)) == (12, 8)
    assert split_prompt(Prompt((1, 2, 3), (), ()), "aware") == ((1,), (2, 3)), "something is left to compress"


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
    few |= {"length": 1600, "scoring": ("likelihood",)}
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
