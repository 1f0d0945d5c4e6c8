"""The metrics of published benchmarks on worked cases and by their laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft.errors import TaskError, UnknownNameError
from cachecraft.tasks.scoring import code_lines, final_answers, longbench
from cachecraft.tasks.scoring.edit import common_length, percent, similarity
from cachecraft.tasks.scoring.named import METRICS, metric_named
from cachecraft.tasks.scoring.rouge import rouge_1, rouge_l

TEXT = st.text("ab c.", max_size=30)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [("", "", 100), ("", "x", 0), ("abcd", "abcd", 100), ("abcd", "abxd", 75), ("kitten", "sitting", 62)],
)
def test_edit_similarity_counts_insertions_and_deletions(a: str, b: str, expected: int) -> None:
    assert percent(a, b) == expected


@settings(max_examples=40, deadline=None)
@given(a=TEXT, b=TEXT)
def test_the_bit_parallel_subsequence_is_the_plain_ones(a: str, b: str) -> None:
    row = [0] * (len(b) + 1)
    for x in a:
        row, above = [0], row
        for place, y in enumerate(b):
            row.append(above[place] + 1 if x == y else max(above[place + 1], row[place]))
    assert common_length(a, b) == row[-1]
    assert similarity(a, b) == similarity(b, a)


def test_rouge_l_unites_the_common_subsequences_of_sentences() -> None:
    # Two sentences of the answer cover w1 w2 and w1 w3 w5 of the one reference sentence (Lin's example): 4 of 5 words.
    found = rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5")
    assert found.recall == pytest.approx(4 / 5)
    assert found.precision == pytest.approx(4 / 8)
    assert rouge_l("", "a").f == rouge_l("a", "").f == 0
    assert rouge_l("the cat sat", "the cat sat").f == pytest.approx(1)
    assert rouge_1("b a", "a b c").recall == pytest.approx(2 / 3)


@settings(max_examples=40, deadline=None)
@given(a=TEXT, b=TEXT)
def test_rouge_stays_between_nothing_and_everything(a: str, b: str) -> None:
    for found in (rouge_l(a, b), rouge_1(a, b)):
        assert 0 <= found.precision <= 1 and 0 <= found.recall <= 1
    assert rouge_l(a, b).recall <= rouge_1(a, b).recall + 1e-12


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("The Eiffel-Tower!", "eiffel tower", 0.0),
        ("It is the cat.", "a cat", 2 * (1 / 3) / (4 / 3)),
        ("yes", "no", 0.0),
        ("An apple, an apple", "apple apple pear", 0.8),
        ("", "x", 0.0),
    ],
)
def test_f1_of_words_without_capitals_marks_and_articles(answer: str, reference: str, expected: float) -> None:
    assert longbench.qa_f1(answer, reference) == pytest.approx(expected)


def test_a_class_counts_by_how_many_names_are_found() -> None:
    classes = ["Food", "Date", "Other food", "Place"]
    assert longbench.classification("Food", "Food", classes) == 1
    assert longbench.classification("Date or Place", "Date", classes) == 0.5
    assert longbench.classification("Place", "Date", classes) == 0
    # The name "food" within the right name is not another class.
    assert longbench.classification("Other food", "Other food", ["food", "Other food"]) == 1


def test_numbers_count_by_their_share_of_all_numbers() -> None:
    assert longbench.retrieval("Paragraph 3, not 12", "Paragraph 3") == 0.5
    assert longbench.retrieval("段落5", "段落5") == 1
    assert longbench.count("7 7 8", "7") == pytest.approx(2 / 3)
    assert longbench.count("seven", "7") == 0
    with pytest.raises(TaskError, match="holds no number"):
        longbench.retrieval("3", "Paragraph three")


def test_code_is_compared_by_the_first_line_without_marks_of_other_text() -> None:
    assert longbench.code_similarity("\n\n# note\n```python\nx = 1\ny", "x = 1") == 1
    assert longbench.code_similarity("`x`", "`x`") == 0, "no line is code"
    assert longbench.first_line("\n\n a\nb") == " a"
    line = code_lines.readable('<s> x = <NUM_LIT:7> <EOL> print ( "<STR_LIT:hello>" ) <EOL> y = <NUM_LIT>')
    assert line == 'x = 7\nprint ( "hello" )\ny = 0'
    assert code_lines.line_similarity("\n  y = 0\nz", "y = 0") == 1


@pytest.mark.parametrize(
    ("answer", "strict", "flexible"),
    [
        ("So it is. The answer is 1,234.", 1, 1),
        ("The answer is $1234.00", 1, 1),
        ("the answer is 12. The answer is 1234.", 0, 1),
        ("it makes 1234", 0, 1),
        ("The answer is 1234\n\nthen 5", 1, 0),
        ("nothing", 0, 0),
    ],
)
def test_gsm8ks_numbers_are_found_in_the_strict_and_the_flexible_way(answer: str, strict: int, flexible: int) -> None:
    assert final_answers.gsm8k_strict(answer, "1234") == strict
    assert final_answers.gsm8k_flexible(answer, "1234") == flexible


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        (r"so \boxed{\frac{1}{2}}", r"\dfrac12", True),
        (r"\boxed{3} no, \boxed{ 1/2 }", r"\frac{1}{2}", True),
        (r"\boxed{x = -5}", "-5", True),
        ("The answer is 1,000.", "1000", True),
        (r"\boxed{90^\circ}", "90", True),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
        (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"\left( 3, \frac{\pi}{2} \right)", True),
        (r"\boxed{0.5}", r"\frac{1}{2}", False),
        (r"\boxed{12", "12", False),
        ("it is 12", "12", False),
    ],
)
def test_formulas_are_the_same_when_they_differ_in_looks_only(answer: str, reference: str, right: bool) -> None:
    assert final_answers.math_match(answer, reference) == right


def test_choices_and_last_numbers() -> None:
    assert final_answers.choice("The correct answer is **(B)**.", "B") == 1
    assert final_answers.choice("The correct answer is B", "B") == 1
    assert final_answers.choice("(B)", "B") == 0
    assert final_answers.last_number("line 7 holds <0042>", "42") == 1
    assert final_answers.last_number("42 in line 7", "42") == 0
    assert final_answers.gsm8k_reference("so 3\n#### 1,200") == "1200"


def test_a_metric_that_does_not_exist_offers_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean rouge_l"):
        metric_named("rouge-l")
    assert all(metric.about for metric in METRICS.values())


def test_chinese_words_are_jiebas() -> None:
    pytest.importorskip("jieba", reason="the package `jieba` (extra: chinese) is not installed")
    assert longbench.qa_f1_chinese("北京是首都。", "首都是北京") == pytest.approx(1)
    assert longbench.rouge_chinese("今天天气很好", "今天天气很好") == pytest.approx(1)


def test_without_jieba_a_chinese_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longbench, "find_spec", lambda name: None)
    longbench._cutter.cache_clear()
    with pytest.raises(TaskError, match=r"needs the package jieba.* pip install 'cachecraft-kv\[chinese\]'"):
        longbench.qa_f1_chinese("好", "好")
