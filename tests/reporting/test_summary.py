"""Condensing results: like with like, references in their place, failures as failures."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from cachecraft.errors import RunError, UnknownNameError
from cachecraft.evaluation.store import Result
from cachecraft.reporting.summary import summaries, summarise
from cachecraft.reporting.tables import as_csv, as_json, difference_table, markdown, notes, records, terminal_table


def result(label: str, budget: str, item: int, value: float | None, **changes: Any) -> Result:
    fields: dict[str, Any] = {
        "id": f"{label}-{budget}-{item}-{changes.get('policy', '')}-{changes.get('task', '')}",
        "task": "ruler:vt",
        "item": f"item-{item}-{changes.get('task', '')}",
        "number": item,
        "cluster": f"item-{item}",
        "label": label,
        "policy": label,
        "budget": budget,
        "reference": label in ("full", "random", "hindsight"),
        "scoring": "answer",
        "state": "rejected" if value is None else "ok",
        "value": value,
        "reason": "it returned NaN" if value is None else "",
        "tokens": 100,
        "kept_bytes": 100 if label == "full" else 25,
        "full_bytes": 100,
    }
    return Result(**(fields | changes))


def grid() -> list[Result]:
    found = []
    for item in range(8):
        found.append(result("full", "0", item, 1.0))
        found.append(result("good", "0.75", item, float(item != 0)))
        found.append(result("poor", "0.75", item, float(item == 0)))
        found += [result("random", "0.75", item, float(draw == 0), policy=f"random{draw}") for draw in range(2)]
    return found


def test_rows_are_ranked_below_the_full_cache() -> None:
    assert [row.label for row in summarise(grid(), "answer").rows] == ["full", "good", "random", "poor"]


def test_the_random_line_is_the_mean_of_its_draws() -> None:
    rows = {row.label: row for row in summarise(grid(), "answer").rows}
    score = rows["random"].cells["0.75"].score
    assert score is not None
    assert score.estimate == pytest.approx(0.5)
    assert score.n == 8


def test_the_macro_average_weighs_tasks_alike_whatever_their_items() -> None:
    found = [result("good", "0.75", item, 1.0) for item in range(6)]
    found += [result("good", "0.75", item, 0.0, task="ruler:cwe") for item in range(2)]
    score = summarise(found, "answer").rows[0].cells["0.75"].score
    assert score is not None
    assert score.estimate == pytest.approx(0.5)


def test_only_items_that_every_row_has_are_compared() -> None:
    ahead = [*grid(), result("good", "0.75", 99, 0.0)]
    assert summarise(ahead, "answer").items == {"ruler:vt": 8}


def test_differences_are_paired_with_the_row_named() -> None:
    rows = {row.label: row for row in summarise(grid(), "answer", against="poor").rows}
    difference = rows["good"].cells["0.75"].difference
    assert difference is not None
    assert difference.estimate == pytest.approx(6 / 8)
    assert rows["poor"].cells["0.75"].difference is None


def test_a_row_to_compare_with_must_exist() -> None:
    with pytest.raises(UnknownNameError, match="did you mean good"):
        summarise(grid(), "answer", against="goot")


def test_a_scoring_that_was_not_measured_is_refused() -> None:
    with pytest.raises(RunError, match="no results under scoring 'likelihood'"):
        summarise(grid(), "likelihood")


def test_a_rejected_policy_has_no_number_and_its_reason_is_told() -> None:
    found = [*grid(), *(result("broken", "0.75", item, None if item == 3 else 1.0) for item in range(8))]
    summary = summarise(found, "answer")
    cell = next(row for row in summary.rows if row.label == "broken").cells["0.75"]
    assert cell.score is None
    assert "| broken | rejected |" in markdown(summary)
    assert any("broken was rejected: it returned NaN" in line for line in notes(summary, {}))
    assert summary.rows[-1].label == "broken"


def test_a_budget_that_leaves_the_scorer_nothing_is_marked() -> None:
    found = [*grid(), *(result("windowed", "0.75", item, 0.0, forced=True) for item in range(8))]
    summary = summarise(found, "answer")
    assert "*" in markdown(summary).split("| windowed |")[1].splitlines()[0]
    assert any(line.startswith("* Protection left nothing") for line in notes(summary, {}))
    said = "Entries of the data that repeat another, counted once: ruler:vt 2."
    assert said in notes(summary, {"repeated": {"ruler:vt": 2, "ruler:cwe": 1}})


def test_every_number_of_the_table_is_in_the_csv() -> None:
    summary = summarise(grid(), "answer")
    lines = as_csv([summary]).splitlines()
    assert len(lines) == 1 + len(records(summary)) == 1 + 4 * 2
    assert lines[0].startswith("scoring,policy,reference,budget,kept")


def test_fidelity_is_told_with_its_mean_kl() -> None:
    kls = {("ruler:vt", 0): 0.1, ("ruler:vt", 1): 0.3, ("ruler:cwe", 0): 1.0}
    found = [
        result("good", "0.75", item, 0.5, task=task, scoring="fidelity", detail={"kl": kl})
        for (task, item), kl in kls.items()
    ]
    summary = summarise(found, "fidelity")
    assert summary.rows[0].cells["0.75"].kl == pytest.approx(0.6), "tasks weigh alike"
    assert [(each["task"], each["kl"]) for each in records(summary)] == [
        ("macro", pytest.approx(0.6)),
        ("ruler:cwe", pytest.approx(1.0)),
        ("ruler:vt", pytest.approx(0.2)),
    ]
    assert {each["kl"] for each in records(summarise(grid(), "answer"))} == {None}


def test_an_average_says_of_how_many_tasks_it_is_and_what_was_skipped() -> None:
    skipped = {"ruler:qa_1": "needs SQuAD's questions", "ruler:vt": "was measured since"}
    summary = summarise(grid(), "answer", skipped=skipped)
    assert summary.skipped == {"ruler:qa_1": "needs SQuAD's questions"}
    lines = notes(summary, {})
    assert "macro average of 1 of 2 tasks" in lines[0]
    assert "Skipped: qa_1 (it needs SQuAD's questions)." in lines
    first = records(summary)[0]
    assert (first["tasks"], first["tasks_skipped"]) == (1, "ruler:qa_1")
    told = json.loads(as_json([summary], {}))["average"]
    assert told == {"of": "1 of 2 tasks", "skipped": {"ruler:qa_1": "needs SQuAD's questions"}}


def test_an_average_of_all_tasks_says_so() -> None:
    assert "macro average of 1 task," in notes(summarise(grid(), "answer"), {})[0]


def test_two_programs_of_one_name_are_two_rows_and_the_draws_of_random_are_one() -> None:
    edited = [result("good", "0.75", item, 0.0, policy="f" * 64) for item in range(8)]
    rows = {row.label: row for row in summarise([*grid(), *edited], "answer", against="good (ffffffff)").rows}
    assert set(rows) == {"full", "good (good)", "good (ffffffff)", "random", "poor"}
    scores = {label: row.cells["0.75"].score for label, row in rows.items() if label.startswith("good")}
    assert {label: each and each.estimate for label, each in scores.items()} == {
        "good (good)": pytest.approx(7 / 8),
        "good (ffffffff)": 0.0,
    }
    assert len(summaries([*grid(), *edited], {"length": [64]}, {})[0].rows) == 5


def test_names_that_would_be_cut_to_the_same_are_shown_whole() -> None:
    long = "protected(keydiff):first=4"
    found = [result(long, "0.75", item, 0.5, policy=policy * 64) for item in range(2) for policy in "ef"]
    console = Console(width=120, file=io.StringIO())
    console.print(terminal_table(summarise(found, "answer")))
    assert f"{long} (eeeeeeee)" in console.file.getvalue() and f"{long} (ffffffff)" in console.file.getvalue()


def test_three_wins_of_three_are_not_marked_and_all_right_is_no_point() -> None:
    found = [result(label, "0.75", item, float(label == "good")) for item in range(3) for label in ("good", "poor")]
    summary = summarise(found, "answer", against="poor")
    score = summary.rows[0].cells["0.75"].score
    assert score is not None and score.high == 1 and score.low < 0.5
    console = Console(width=120, file=io.StringIO())
    console.print(difference_table(summary))
    assert "+1.00 [-0.12,1.00]" in console.file.getvalue() and "!" not in console.file.getvalue()
    found = [result(label, "0.75", item, float(label == "good")) for item in range(9) for label in ("good", "poor")]
    console.print(difference_table(summarise(found, "answer", against="poor")))
    assert "!" in console.file.getvalue()


def test_items_of_one_document_make_the_score_less_certain() -> None:
    values = [float(item // 5 % 2) for item in range(20)]
    widths = []
    for shared in (5, 1):
        found = [result("good", "0.75", n, value, cluster=f"d{n // shared}") for n, value in enumerate(values)]
        score = summarise(found, "answer").rows[0].cells["0.75"].score
        assert score is not None
        widths.append(score.high - score.low)
    assert widths[0] > 1.3 * widths[1]
