"""Comparisons on runs whose scores are known: what is shown, what is not, what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evaluation.made_runs import SETTINGS, result, wide, write

from cachecraft.errors import CacheCraftError, RunError, UnknownNameError
from cachecraft.evaluation import comparison
from cachecraft.evaluation.corrections import holm
from cachecraft.evaluation.settings import IDENTITY
from cachecraft.evaluation.store import Result, open_run
from cachecraft.reporting.comparison import margins, sentences
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
    assert neglected(held, "answer")[0] == "p at 0.5 on t keeps 10 % of the instruction but 50 % of everything."
