"""The run folder: atomic, content-addressed, refusing what it should."""

import math
from pathlib import Path

import pytest

from cachecraft.errors import RunError
from cachecraft.evaluation.store import Result, open_run, read_run

IDENTITY = ("model", "seed")
SETTINGS = {"model": "tiny", "seed": 0, "samples": 2, "policies": ["knorm"]}


def result(name: str, value: float | None = 0.5, **changes: object) -> Result:
    fields: dict[str, object] = {
        "id": name,
        "task": "ruler:vt",
        "item": "item-1",
        "number": 0,
        "cluster": "item-1",
        "label": "knorm",
        "policy": "abc",
        "budget": "0.5",
        "reference": False,
        "scoring": "answer",
        "state": "ok" if value is not None else "rejected",
        "value": value,
        "reason": "" if value is not None else "it returned NaN",
        "tokens": 10,
        "kept_bytes": 5,
        "full_bytes": 10,
        "detail": {"answer": "42"},
    }
    return Result(**(fields | changes))  # type: ignore[arg-type]


def test_what_is_stored_comes_back_unchanged(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS, IDENTITY)
    kept = [result("a"), result("b", None), result("c", 1.0, forced=True, budget="0.75")]
    store.add(kept, {"question": "why?"})
    store.close()
    again = read_run(tmp_path / "run")
    assert sorted(again.results(), key=lambda r: r.id) == kept
    assert again.done(["a", "b", "x"]) == {"a", "b"}
    assert again.item_texts() == {"item-1": {"question": "why?"}}


def test_settings_that_are_mappings_agree_where_they_meet_and_grow(tmp_path: Path) -> None:
    identity = (*IDENTITY, "sources", "compat")
    for sources in ({}, {"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}):
        store = open_run(tmp_path / "run", {**SETTINGS, "sources": sources, "compat": False}, identity)
        store.close()
    assert store.settings["sources"] == {"a": "1", "b": "2"}
    with pytest.raises(RunError, match="holds a run with sources of b '2', not '3'"):
        open_run(tmp_path / "run", {**SETTINGS, "sources": {"b": "3"}, "compat": False}, identity)


def test_a_setting_that_an_older_folder_lacks_counts_as_off(tmp_path: Path) -> None:
    identity = (*IDENTITY, "sources", "compat")
    open_run(tmp_path / "run", SETTINGS, IDENTITY).close()
    open_run(tmp_path / "run", {**SETTINGS, "sources": {"a": "1"}, "compat": False}, identity).close()
    with pytest.raises(RunError, match="compat False, not True"):
        open_run(tmp_path / "run", {**SETTINGS, "sources": {}, "compat": True}, identity)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, 1, "0.5", None])
def test_only_a_finite_float_is_ever_a_value(value: object) -> None:
    with pytest.raises(RunError):
        result("a", value, state="ok")  # type: ignore[arg-type]


def test_a_rejected_result_carries_no_number() -> None:
    with pytest.raises(RunError):
        result("a", 0.0, state="rejected")


def test_an_interrupted_transaction_leaves_nothing_behind(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS, IDENTITY)
    store.add([result("a")])
    broken = [result("b"), object()]
    with pytest.raises(Exception, match="dataclass"):
        store.add(broken)  # type: ignore[arg-type]
    assert [r.id for r in store.results()] == ["a"]


def test_a_folder_of_another_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    open_run(tmp_path / "run", SETTINGS, IDENTITY).close()
    with pytest.raises(RunError, match=r"holds a run with model 'tiny', not 'other'.*another folder"):
        open_run(tmp_path / "run", SETTINGS | {"model": "other"}, IDENTITY)


def test_a_second_command_may_add_policies_and_samples(tmp_path: Path) -> None:
    open_run(tmp_path / "run", SETTINGS, IDENTITY).close()
    open_run(tmp_path / "run", SETTINGS | {"policies": ["keydiff"], "samples": 1}, IDENTITY).close()
    settings = read_run(tmp_path / "run").settings
    assert settings["policies"] == ["knorm", "keydiff"]
    assert settings["samples"] == 2


def test_settings_that_were_not_made_use_of_are_replaced_instead_of_compared_or_united(tmp_path: Path) -> None:
    open_run(tmp_path / "run", SETTINGS | {"policies": ["knorm"]}, IDENTITY).close()
    changed = {**SETTINGS, "model": "other", "policies": ["keydiff"]}
    store = open_run(tmp_path / "run", changed, IDENTITY, replaced=("model", "policies"))
    store.close()
    assert (store.settings["model"], store.settings["policies"]) == ("other", ["keydiff"])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty and not a run"):
        open_run(tmp_path, SETTINGS, IDENTITY)
    with pytest.raises(RunError, match="is not a run folder"):
        read_run(tmp_path)
    with pytest.raises(RunError, match="is a file"):
        open_run(tmp_path / "notes.txt", SETTINGS, IDENTITY)


def test_a_damaged_settings_file_is_named(tmp_path: Path) -> None:
    open_run(tmp_path / "run", SETTINGS, IDENTITY).close()
    (tmp_path / "run" / "run.yaml").write_text("- just\n- a list\n")
    with pytest.raises(RunError, match=r"run\.yaml does not hold settings"):
        open_run(tmp_path / "run", SETTINGS, IDENTITY)


def test_the_ledger_remembers_each_reading_of_a_split(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS, IDENTITY)
    store.log_reading("test", "evaluate", "2026-01-01T00:00:00+00:00")
    store.log_reading("test", "table", "2026-01-02T00:00:00+00:00")
    assert [purpose for _, _, purpose in store.readings()] == ["evaluate", "table"]
