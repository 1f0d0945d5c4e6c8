"""A search on a tiny model: resumable to the vector, exact after completion, and usable by every other command."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cachecraft import api
from cachecraft.budgeting import BudgetSearch, search_budgets
from cachecraft.budgets.items import Calibration, scaled
from cachecraft.budgets.search import SearchProgress, explicit
from cachecraft.budgets.settings import EvolKVSettings, SearchTask
from cachecraft.errors import BudgetError, PolicyLoadError, RunError, TaskError
from cachecraft.evaluation.cells import Budget
from cachecraft.models import LoadedModel
from cachecraft.policy.contract import load_policy
from cachecraft.policy.variants import variant
from cachecraft.reporting.budgets import _line, budget_notes
from cachecraft.tasks.registry import load_tasks

pytestmark = pytest.mark.system

KEEP, LAYERS = 24, 2


@pytest.fixture(scope="module")
def loaded(tiny_llama, tiny_tokenizer, brief_answers) -> LoadedModel:
    return LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "r0", "float32", "cpu")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture: one search in this file draws one, and it takes longer than the search."""
    monkeypatch.setattr("cachecraft.budgeting.plot_budgets", lambda *given, **more: None)


def search(loaded: LoadedModel, folder: Path, *, asked: dict[str, Any] | None = None, **changes: Any) -> BudgetSearch:
    given = {"iterations": 2, "population": 4} | changes.pop("settings", {})
    budget = changes.pop("budget", Budget(keep=KEEP))
    return search_budgets(
        loaded,
        policy=changes.pop("policy", "keydiff"),
        asked=SearchTask(budget, **({"length": 360, "samples": 1, "held_out": 1} | (asked or {}))),
        settings=EvolKVSettings(**given),
        run=folder,
        **changes,
    )


@pytest.fixture(scope="module")
def whole(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> BudgetSearch:
    return search(loaded, tmp_path_factory.mktemp("whole") / "b1")


@pytest.mark.usefixtures("undrawn")
def test_constants_that_the_policy_refuses_are_worth_nothing_and_the_search_goes_on(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    file = tmp_path / "picky.py"
    file.write_text(
        "def score_tokens(f, power=1.0):\n"
        "    if power > 1:\n        raise ValueError('too high')\n"
        "    return f.keys.norm(dim=-1) ** power\n"
    )
    found = search(loaded, tmp_path / "b", policy=str(file), trust=True, settings={"with_params": True})
    assert found.budgets.evaluated > 1 and 0 < found.budgets.before <= 1


def test_budgets_are_completed_to_the_exact_total_and_stand_beside_others(whole: BudgetSearch) -> None:
    held = whole.budgets
    assert sum(held.budgets) == KEEP * LAYERS
    assert all(sum(own) == int(target) * LAYERS for target, own in held.completions.items())
    assert {row.name for row in held.table} == {
        *("evolkv", "uniform", "pyramid", "reversed_pyramid", "adaptive", "random"),
    }
    assert all(0 <= row.search <= 1 and row.validation is not None for row in held.table)
    assert held.before is not None and held.after is not None
    assert all(plot.stat().st_size > 1000 for plot in whole.plots)
    assert not (whole.folder / "traces").exists() and not list(whole.folder.glob(".*"))


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_search_goes_on_as_if_nothing_had_happened(
    loaded: LoadedModel, whole: BudgetSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_items: list[SearchProgress] = []

    def stop(seen: SearchProgress) -> None:
        seen_items.append(seen)
        if seen.iteration == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(loaded, tmp_path / "b1", progress=stop)
    assert (seen_items[0].item, seen_items[0].items, seen_items[0].fitness) == (1, 1, None)
    assert "item 1 of 1, 0 vectors: nothing measured yet" in _line(seen_items[0])
    measured: list[int] = []
    by_counts = Calibration.by_counts

    def counting(self: Calibration, number: int, candidates: Any) -> list[float]:
        measured.append(len(candidates))
        return by_counts(self, number, candidates)

    monkeypatch.setattr(Calibration, "by_counts", counting)
    again = search(loaded, tmp_path / "b1")
    assert json.loads(again.path.read_text()) == json.loads(whole.path.read_text())
    assert sum(measured) < whole.budgets.evaluated, "what was measured before is not measured again"
    measured.clear()
    assert search(loaded, tmp_path / "b1").budgets == again.budgets and not measured
    kept = tmp_path / "b1" / "traces" / "search" / "item"
    kept.mkdir(parents=True)
    with pytest.raises(RunError, match="iterations"):
        search(loaded, tmp_path / "b1", settings={"iterations": 3})
    assert kept.exists(), "what is refused changes nothing"


def test_the_file_is_an_allocation_with_the_same_bytes(
    loaded: LoadedModel, whole: BudgetSearch, tmp_path: Path
) -> None:
    found = api.evaluate(
        loaded,
        policies=["keydiff"],
        keeps=[KEEP],
        length=360,
        samples=1,
        run=tmp_path / "run",
        allocations=["uniform", "adaptive", "global", str(whole.path)],
        scoring=["likelihood"],
        references=[],
    )
    by_label = {result.label: result for result in found.results}
    assert set(by_label) == {f"keydiff [{name}]" for name in ("uniform", "adaptive", "global", "b1")}
    assert len({result.kept_bytes for result in found.results}) == 1
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "cachecraft-budgets-1", "budgets": [1, 2, 3]}')
    with pytest.raises(BudgetError, match="for 3 layers, but this model has 2"):
        api.evaluate(loaded, policies=["keydiff"], keeps=[KEEP], run=tmp_path / "no", allocations=[str(wrong)])
    assert not (tmp_path / "no").exists()


def own_task(path: Path, words: Sequence[int], max_new_tokens: int = 4) -> str:
    """A file of tasks of one item for each number of words; a third of them are in each split."""
    rows = [
        {
            "context": f"{number} {'sky grass ' * (count // 2)}",
            "question": "Which?",
            "answers": ["sky"],
            "metric": "qa_f1",
            "max_new_tokens": max_new_tokens,
        }
        for number, count in enumerate(words)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.usefixtures("undrawn")
def test_items_may_differ_in_length(loaded: LoadedModel, tmp_path: Path) -> None:
    task = own_task(tmp_path / "own.jsonl", [10, 150] * 6)
    half, asked = Budget(ratio=0.5), {"samples": 4, "held_out": 0}
    found = search(loaded, tmp_path / "b", tasks=[task], asked=asked, budget=half, settings={"iterations": 1}).budgets
    subject = api.subject_of(loaded)
    items = Calibration(
        subject, load_tasks([task]), SearchTask(half, length=360, samples=4), "search", tmp_path / "t"
    ).items
    short, *_, long = sorted(items, key=lambda each: len(each.context))
    assert found.target is not None and len(short.context) < found.target < len(long.context)
    assert found.tokens is not None and 2 * found.target <= found.tokens <= 2 * found.target + 2
    for each in items:
        whole = scaled([found.tokens, 1], found.target, each.keep, len(each.context), 2, 2)
        assert int(whole[0, 0]) == len(each.context), "a budget may be all of a context, however long"
    with pytest.raises(BudgetError, match="nothing to evict"):
        search(loaded, tmp_path / "no", tasks=[task], asked=asked, budget=Budget(ratio=0.0))


@pytest.mark.usefixtures("undrawn")
def test_items_that_are_too_long_can_be_left_out(loaded: LoadedModel, tmp_path: Path) -> None:
    task = own_task(tmp_path / "own.jsonl", [40] * 9 + [500] * 9)
    with pytest.raises(TaskError, match="--skip-long"):
        search(loaded, tmp_path / "b", tasks=[task], asked={"samples": 3})
    found = search(loaded, tmp_path / "b", tasks=[task], asked={"skip_long": True}, settings={"iterations": 1})
    assert found.budgets.search["skip_long"] is True and found.budgets.tokens is not None
    with pytest.raises(TaskError, match=r"at most \d items of each task"):
        search(loaded, tmp_path / "c", tasks=[task], asked={"skip_long": True, "samples": 9})


@pytest.mark.usefixtures("undrawn")
def test_heads_constants_and_answers_can_be_searched_on(loaded: LoadedModel, tmp_path: Path) -> None:
    found = search(
        loaded,
        tmp_path / "b2",
        policy="snapkv:window=8",
        budget=Budget(ratio=0.9),
        settings={"iterations": 1, "granularity": "head", "with_params": True},
        asked={"held_out": 0, "fitness": "answer"},
    )
    rows = found.budgets.budgets
    assert len(rows) == LAYERS and all(len(row) == 2 for row in rows)  # type: ignore[arg-type]
    assert found.policy.startswith("snapkv") and found.budgets.target is not None
    assert all(row.validation is None for row in found.budgets.table)


@pytest.mark.parametrize("heads", ["alike", "adaptive"])
@pytest.mark.parametrize("policy", ["keydiff", "h2o"])
def test_a_vector_is_worth_what_its_file_is_worth(loaded: LoadedModel, tmp_path: Path, policy: str, heads: str) -> None:
    subject, asked = api.subject_of(loaded), SearchTask(Budget(keep=KEEP), length=360, samples=1)
    shared = heads == "adaptive"
    items = Calibration(subject, load_tasks(["ruler:niah_single_1"]), asked, "search", tmp_path, adaptive_heads=shared)
    made, counts = load_policy(policy), torch.tensor([[10, 10], [38, 38]])
    (by_counts,) = items.by_counts(0, [(made, counts)])
    filed = variant(made, allocation=explicit([10, 38], LAYERS, adaptive_heads=shared))
    ((by_policy, note),) = items.by_policy(0, [filed])
    assert by_policy == pytest.approx(by_counts, rel=1e-4) and note == ""


@pytest.mark.usefixtures("undrawn")
def test_the_table_says_what_had_to_give_way(loaded: LoadedModel, tmp_path: Path) -> None:
    given: dict[str, Any] = {"policy": "snapkv", "budget": Budget(ratio=0.1), "asked": {"held_out": 0}}
    for _ in range(2):  # measured, and read from the record
        found = search(loaded, tmp_path / "b", settings={"iterations": 1}, **given).budgets
        notes = {row.name: row.note for row in found.table}
        assert "kept alike" in (notes["pyramid"] or "") and notes["uniform"] is None
        assert any(line.startswith("pyramid: A pyramid over") for line in budget_notes(found))


def test_bad_input_is_refused_before_anything_is_measured(loaded: LoadedModel, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("raise SystemExit('was run')\n\ndef score_tokens(f):\n    return f.keys[..., 0]\n")
    with pytest.raises(PolicyLoadError, match="--trust"):
        search(loaded, tmp_path / "no", policy=str(mine))
    with pytest.raises(BudgetError, match="nothing to evict"):
        search(loaded, tmp_path / "no", budget=Budget(keep=5000))
    own = own_task(tmp_path / "own.jsonl", [40] * 6)
    with pytest.raises(TaskError, match="validation"):  # and not after an hour of search
        search(loaded, tmp_path / "no", tasks=[own], asked={"held_out": 3})
    with pytest.raises(BudgetError, match="no constants"):
        search(loaded, tmp_path / "no", policy="knorm", settings={"with_params": True})
    with pytest.raises(BudgetError, match="at least 1"):
        search(loaded, tmp_path / "no", asked={"samples": 0})
    assert not (tmp_path / "no" / "run.sqlite").exists()
