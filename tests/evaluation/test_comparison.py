"""Comparisons on runs whose scores are known: what is shown, what is not, what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evaluation.made_runs import SETTINGS, result, wide, write

from cachecraft.errors import CacheCraftError, RunError, UnknownNameError
from cachecraft.evaluation import comparison
from cachecraft.evaluation.corrections import benjamini_hochberg, holm
from cachecraft.evaluation.settings import IDENTITY
from cachecraft.evaluation.store import Result, open_run
from cachecraft.reporting.comparison import margins, rejections, sentences
from cachecraft.reporting.pitfalls import neglected, rises, survivals


def test_what_is_shown_and_what_is_not_is_said_in_words(tmp_path: Path) -> None:
    good = wide(1, 0.7)
    scores = {"full": wide(0, 0.8), "good": good, "same": good[::-1], "bad": wide(3, 0.3)}
    cells, scoring = comparison.read_cells([write(tmp_path / "run", scores)])
    found = comparison.compare(cells, comparison.pairs_of(cells))
    assert {frozenset((each.a, each.b)) for each in found if each.shown} == {
        frozenset(("good", "bad")),
        frozenset(("same", "bad")),
    }
    lines = sentences(found, scoring)
    assert lines[0].startswith("good beats bad at 0.5 by ") and "points, 95 % " in lines[0] and "40 items" in lines[0]
    assert lines[-1].startswith("good and same at 0.5: no difference shown (")
    near = margins(comparison.near_full(cells, 0.2), scoring)
    said = {line.split()[0]: line for line in near}
    assert said["good"].startswith("good at 0.5 is within 20 points of the full cache: shown")
    assert said["bad"].startswith("bad at 0.5 is within 20 points of the full cache: not shown")
    close = margins(comparison.near_full(cells, 0.02), scoring)
    assert all(": not shown (" in line for line in close)


def test_what_was_rejected_on_some_item_is_not_compared_on_the_rest(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {"full": wide(0, 0.8), "good": wide(1, 0.7), "half": wide(2, 0.9, count=39)})
    store = open_run(folder, SETTINGS, IDENTITY)
    store.add([result("half", 39, None, state="rejected", reason="it returned NaN.")], {"length": 512})
    store.close()
    cells, _ = comparison.read_cells([folder])
    assert "half" not in cells.scores and cells.rejected == {("half", "0.5"): "it returned NaN."}
    assert rejections(cells.rejected) == ["half at 0.5 was rejected: it returned NaN."]
    assert [row for row, _, _ in comparison.near_full(cells, 0.1)] == ["good"]


def test_rows_of_several_runs_are_paired_by_item_and_told_apart_by_folder(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a": wide(1, 0.7)})
    two = write(tmp_path / "two", {"b": wide(2, 0.4, count=25)})
    cells, _ = comparison.read_cells([one, two])
    (found,) = comparison.compare(cells, comparison.pairs_of(cells, against="b"))
    assert (found.a, found.b, found.difference.n, found.shown) == ("a", "b", 25, True)
    store = open_run(tmp_path / "three", SETTINGS, IDENTITY)
    store.add([result("a", 0, 0.5, policy="another program")], {"length": 512})
    store.close()
    cells, _ = comparison.read_cells([one, tmp_path / "three"])
    assert set(cells.scores) == {"a (one)", "a (three)"}


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a": [1.0, 0.0]})
    aware = write(tmp_path / "aware", {"b": [1.0]}, regime="aware")
    with pytest.raises(RunError, match=r"with regime 'agnostic' and .*aware with 'aware': only runs that agree"):
        comparison.read_cells([one, aware])
    cells, _ = comparison.read_cells([one])
    with pytest.raises(RunError, match="no two policies to compare"):
        comparison.pairs_of(cells)
    with pytest.raises(UnknownNameError, match="row of these runs"):
        comparison.pairs_of(cells, against="nobody")
    with pytest.raises(RunError, match="hold no results under scoring 'fidelity'"):
        comparison.read_cells([one], "fidelity")
    with pytest.raises(CacheCraftError, match="no correction 'none'; choose holm or bh"):
        comparison.compare(cells, [("a", "a")], correction="none")


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    with pytest.raises(RunError):
        holm([1.5])


def test_a_lost_answer_a_dropped_part_and_a_score_that_rises_are_seen() -> None:
    def kept(number: int, budget: str, value: float, alive: bool) -> Result:
        parts = {"instruction": {"tokens": 5, "kept": 0.1}, "rest": {"tokens": 90, "kept": 0.6}}
        detail = {"retention": {"segments": parts, "survived": {"answer": alive}, "whole": {"answer": 0.25}}}
        return result("p", number, value, budget, detail=detail)

    held = [
        kept(0, "0.5", 1.0, True),
        kept(1, "0.5", 0.0, False),
        kept(0, "0.75", 1.0, True),
        kept(1, "0.75", 1.0, True),
    ]
    first, second = survivals(held, "answer")
    assert (first.survived, first.items, first.heads, first.score_if_survived, first.score_if_not) == (
        0.5,
        2,
        0.25,
        1,
        0,
    )
    assert second.score_if_not is None
    assert rises(held, "answer") == ["p on t scores 1.00 at 0.75 but 0.50 at 0.5, where more is kept."]
    rejected = result("p", 2, None, "0.75", state="rejected", reason="it returned NaN.")
    assert [each.budget for each in survivals([*held, rejected], "answer")] == ["0.5"]
    assert not rises([*held, rejected], "answer")
    assert neglected(held, "answer")[0] == "p at 0.5 on t keeps 10 % of the instruction but 50 % of everything."


def test_rising_scores_are_of_the_same_items_at_one_length_and_begin_with_the_full_cache() -> None:
    held = [result("full", 0, 0.0, "0"), result("full", 1, 1.0, "0")]
    held += [result("p", 0, 0.0, "0.5"), result("p", 1, 1.0, "0.5"), result("p", 1, 1.0, "0.75")]
    assert not rises(held, "answer"), "the harder item was not measured at 0.75"
    held += [result("p", 2, 1.0, "0.5"), result("full", 2, 0.0, "0")]
    assert rises(held, "answer", lambda each: 512 + each.number // 2) == [
        "p on t at 513 tokens scores 1.00 at 0.5 but 0.00 with the full cache."
    ]


def test_two_programs_of_one_name_are_two_rows_named_by_id_or_folder(tmp_path: Path) -> None:
    one, two = tmp_path / "x" / "run", tmp_path / "y" / "run"
    for folder, programs in ((one, {"a": "0" * 64}), (two, {"a": "1" * 64})):
        store = open_run(folder, SETTINGS, IDENTITY)
        for label, policy in programs.items():
            store.add([result(label, number, float(policy[0]), policy=policy) for number in range(4)])
        store.close()
    cells, _ = comparison.read_cells([one, two])
    assert {row: scores["0.5"]["t"]["t0"] for row, scores in cells.scores.items()} == {"a (x/run)": 0, "a (y/run)": 1}
    store = open_run(two, SETTINGS, IDENTITY)  # measured again after an edit
    store.add([result("a", number, 0.5, id=f"again {number}", policy="1" * 8 + "2" * 56) for number in range(4)])
    store.close()
    cells, _ = comparison.read_cells([one, two])
    assert set(cells.scores) == {"a (000000000)", "a (111111111)", "a (111111112)"}


def test_the_draws_of_random_stay_one_row(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS, IDENTITY)
    draws = [result("random", 0, float(draw), id=str(draw), policy=f"{draw}", reference=True) for draw in range(2)]
    store.add([*draws, result("a", 0, 1.0)])
    store.close()
    cells, _ = comparison.read_cells([tmp_path / "run"])
    assert cells.scores["random"]["0.5"]["t"] == {"t0": 0.5} and cells.references == {"random"}


def test_a_sample_measured_at_several_lengths_counts_once(tmp_path: Path) -> None:
    store = open_run(tmp_path / "run", SETTINGS | {"length": [512, 1024, 2048]}, IDENTITY)
    for length in (512, 1024, 2048):
        for number in range(4):
            for label, value in (("a", 1.0), ("b", 0.0)):
                changes = {"id": f"{label} {length} {number}", "item": f"{number} at {length}", "cluster": f"{number}"}
                store.add([result(label, number, value, **changes)], {"length": length})
    store.close()
    cells, _ = comparison.read_cells([tmp_path / "run"])
    (found,) = comparison.compare(cells, [("a", "b")])
    assert found.difference.n == 12 and found.p == pytest.approx(1 / 8, abs=0.02) and not found.shown


def test_six_hundred_comparisons_leave_room_for_one_that_is_shown() -> None:
    values = {"good": [0.75] * 20, "bad": [0.25] * 20, "other": [0.75, 0.25] * 10, "another": [0.25, 0.75] * 10}
    scores = {
        row: {"0.5": {task: {f"{task}{n}": each for n, each in enumerate(own)} for task in "tu"}}
        for row, own in values.items()
    }
    cells = comparison.Cells(SETTINGS, scores, {}, frozenset())
    found = comparison.compare(cells, [("good", "bad"), *[("other", "another")] * 600])
    assert found[0].p < 0.04 and found[0].shown  # of 9999 permutations it could not be below 0.06
    assert not any(each.shown for each in found[1:])


def test_the_correction_is_that_of_benjamini_and_hochberg_unless_holm_is_asked_for(tmp_path: Path) -> None:
    cells, _ = comparison.read_cells([write(tmp_path / "run", {name: wide(n, 0.5, 9) for n, name in enumerate("abc")})])
    alone = [each.difference.p or 0.0 for each in comparison.compare(cells, comparison.pairs_of(cells))]
    for given, adjusted in (({}, benjamini_hochberg), ({"correction": "holm"}, holm)):
        found = comparison.compare(cells, comparison.pairs_of(cells), **given)
        assert [each.p for each in found] == pytest.approx(adjusted(alone))
