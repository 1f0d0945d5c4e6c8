"""Every metric by the name that a file of tasks gives it, with what it says for a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cachecraft.errors import UnknownNameError
from cachecraft.tasks.metrics import string_match_all, string_match_part
from cachecraft.tasks.scoring import final_answers, longbench
from cachecraft.tasks.scoring.code_lines import line_similarity
from cachecraft.tasks.scoring.edit import similarity
from cachecraft.tasks.task import Item


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        score: Of an answer to an item, 0 to 1.
        about: What it says, as half a sentence.
        aliases: Whether the references are aliases of each other; else all of them are wanted.
    """

    score: Callable[[str, Item], float]
    about: str
    aliases: bool = True


def _best(of_one: Callable[[str, str], float], about: str) -> Metric:
    """A metric that takes one reference: the best over the references."""
    return Metric(lambda answer, item: max(of_one(answer, reference) for reference in item.references), about)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "contains_all": Metric(
            lambda answer, item: string_match_all(answer, item.references),
            "share of the answers that stand in what was generated, capitals aside",
            aliases=False,
        ),
        "contains_any": Metric(
            lambda answer, item: string_match_part(answer, item.references), "1 if any of the answers stands in it"
        ),
        "exact": _best(
            lambda answer, reference: float(answer.strip().lower() == reference.strip().lower()),
            "1 if it is one of the answers, capitals and outer white space aside",
        ),
        "qa_f1": _best(longbench.qa_f1, "F1 of the words (LongBench)"),
        "qa_f1_zh": _best(longbench.qa_f1_chinese, "F1 of the Chinese words (LongBench; needs jieba)"),
        "rouge_l": _best(longbench.rouge, "F of ROUGE-L (LongBench)"),
        "rouge_l_zh": _best(longbench.rouge_chinese, "F of ROUGE-L over Chinese words (LongBench; needs jieba)"),
        "classification": Metric(
            lambda answer, item: max(
                longbench.classification(answer, reference, item.classes) for reference in item.references
            ),
            "1 / class names found, if the right one is among them; needs the field classes (LongBench)",
        ),
        "retrieval": _best(longbench.retrieval, "share of the numbers in it that are the answer's (LongBench)"),
        "count": _best(longbench.count, "share of the numbers in it that are the answer (LongBench)"),
        "code_similarity": _best(longbench.code_similarity, "edit similarity of its first line of code (LongBench)"),
        "line_similarity": _best(line_similarity, "edit similarity of its first line that is not blank (CodeXGLUE)"),
        "edit_similarity": _best(similarity, "edit similarity of the whole text"),
        "gsm8k_strict": _best(final_answers.gsm8k_strict, "1 if the number after 'The answer is' is right (GSM8K)"),
        "gsm8k_flexible": _best(final_answers.gsm8k_flexible, "1 if the last number is right (GSM8K)"),
        "math": _best(final_answers.math_match, "1 if the formula in the last \\boxed{} is right (MATH)"),
        "choice": _best(final_answers.choice, "1 if it says 'The correct answer is (X)' rightly (LongBench v2)"),
        "last_number": _best(final_answers.last_number, "1 if the last whole number in it is right (LongEval)"),
    }
)
"""The metrics by name."""


def metric_named(name: str) -> Metric:
    """A metric.

    Raises:
        UnknownNameError: There is none of that name.
    """
    if name not in METRICS:
        raise UnknownNameError("metric", name, METRICS)
    return METRICS[name]
