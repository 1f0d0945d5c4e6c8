"""Which cells a grid has, and what names them."""

import json
import re
from pathlib import Path

import pytest

from cachecraft.errors import BudgetError, CacheCraftError
from cachecraft.evaluation.cells import Budget, make_cells, result_id


@pytest.mark.parametrize("wrong", [{}, {"ratio": 0.5, "keep": 3}, {"ratio": 1.0}, {"ratio": -0.1}, {"keep": 0}])
def test_a_budget_that_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BudgetError):
        Budget(**wrong)  # type: ignore[arg-type]


def test_every_digit_of_a_ratio_names_its_results() -> None:
    cells = make_cells(["knorm"], [Budget(ratio=ratio) for ratio in (2 / 3, 0.666667, 0.75, 0.0)], references=())
    assert len({cell.fingerprint for cell in cells}) == 4
    assert [cell.fingerprint.split()[1] for cell in cells[2:]] == ["0.75", "0"]


def test_policies_cross_budgets_and_reference_lines_join_them() -> None:
    cells = make_cells(["knorm", "keydiff"], [Budget(ratio=0.5), Budget(keep=8)])
    counts = {label: sum(cell.label == label for cell in cells) for label in {cell.label for cell in cells}}
    assert counts == {"knorm": 2, "keydiff": 2, "full": 1, "hindsight": 2, "random": 6}


def test_a_policy_named_twice_is_measured_once() -> None:
    assert len(make_cells(["knorm", "knorm"], [Budget(ratio=0.5)], references=())) == 1


def test_two_policies_of_one_name_and_different_programs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "knorm.py").write_text("def score_tokens(f):\n    return f.keys.norm(dim=-1)\n")
    for number in (1, 2):
        (tmp_path / f"{number}" / "b1").mkdir(parents=True)
        text = json.dumps({"format": "cachecraft-budgets-1", "budgets": [number, 1]})
        (tmp_path / f"{number}" / "b1" / "budgets.json").write_text(text)
    files = [str(tmp_path / f"{number}" / "b1" / "budgets.json") for number in (1, 2)]
    with pytest.raises(CacheCraftError, match=re.escape(f"from {' and '.join(files)}; rename one of the run folders")):
        make_cells(["knorm"], [Budget(ratio=0.5)], allocations=files)
    with pytest.raises(CacheCraftError, match="Two different policies are called 'knorm'"):
        make_cells(["knorm", str(tmp_path / "knorm.py")], [Budget(ratio=0.5)])


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(CacheCraftError, match="nothing to measure"):
        make_cells([], [Budget(ratio=0.5)], references=())


def test_parameters_and_selectors_change_a_cells_fingerprint() -> None:
    budget = [Budget(ratio=0.5)]
    plain, other, chunked = (
        make_cells([spec], budget, references=(), selector=selector)[0].fingerprint
        for spec, selector in (("snapkv", None), ("snapkv:window=32", None), ("snapkv", "chunks:20"))
    )
    assert len({plain, other, chunked}) == 3


def test_the_same_settings_have_the_same_id_whatever_their_order() -> None:
    assert result_id(model="m", item="i") == result_id(item="i", model="m")
    assert result_id(model="m", item="i") != result_id(model="m", item="j")


def test_a_selector_given_from_outside_shows_in_the_label() -> None:
    assert (
        make_cells(["snapkv"], [Budget(ratio=0.5)], references=(), selector="chunks:20")[0].label
        == "snapkv [chunks:20]"
    )
