"""GSM8K (arXiv 2110.14168) and MATH (arXiv 2103.03874): problems after worked examples.

The compressible context are worked examples from the user's own files, which are then not asked: the first ones of the
files whose name says ``train`` (none of whose problems are asked then), else the first ones of all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachecraft.errors import TaskError
from cachecraft.tasks.benchmark import BenchmarkTask, Sample
from cachecraft.tasks.data_forms import FORMS, Form
from cachecraft.tasks.entries import Entry, Text, checked, wrong
from cachecraft.tasks.scoring.final_answers import gsm8k_flexible, gsm8k_reference, gsm8k_strict, math_match
from cachecraft.tasks.sources import Sources
from cachecraft.tasks.task import Task

_CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's marks for a calculator
_MATH_OPENING = "Solve each problem and put its final answer into \\boxed{}.\n\n"


class _Gsm8k(Entry):
    question: Text
    answer: Text


class _Math(Entry):
    problem: Text
    solution: Text
    answer: Text


@dataclass(frozen=True)
class _Problem:
    """A problem, its worked solution in the wording of the examples, and its answer."""

    place: str
    training: bool
    text: str
    solution: str
    answer: str


def gsm8k_tasks(sources: Sources) -> tuple[Task, ...]:
    """Grade-school problems after 8 examples that end in "The answer is"."""
    return (
        BenchmarkTask(
            name="gsm8k",
            read=lambda: _asked(_problems("gsm8k", sources, _gsm8k), 8, "Q: ", "A:", "", stop=("Q:",)),
            metric=lambda answer, item: gsm8k_strict(answer, item.references[0]),
            beside={"gsm8k_flexible": lambda answer, item: gsm8k_flexible(answer, item.references[0])},
            max_new_tokens=256,
            needs=lambda: _needs("gsm8k", sources, "test.jsonl"),
            skip_long=sources.skip_long,
        ),
    )


def math_tasks(sources: Sources) -> tuple[Task, ...]:
    """Competition problems after 4 examples."""
    return (
        BenchmarkTask(
            name="math",
            read=lambda: _asked(
                _problems("math", sources, _math), 4, "Problem:\n", "Solution:", _MATH_OPENING, stop=("Problem:",)
            ),
            metric=lambda answer, item: math_match(answer, item.references[0]),
            max_new_tokens=512,
            needs=lambda: _needs("math", sources, "test.jsonl of MATH or MATH-500"),
            skip_long=sources.skip_long,
        ),
    )


def _needs(form: Form, sources: Sources, file: str) -> str:
    return "" if sources.benchmark(form) else f"needs {FORMS[form]}'s {file}: give it with --data"


def _problems(form: Form, sources: Sources, take: Callable[[object, str, str], tuple[str, str, str]]) -> list[_Problem]:
    return [
        _Problem(f"{place.rstrip(', ')} of {file.name}", "train" in file.stem, *take(entry, file.name, place))
        for file in sources.benchmark(form)
        for place, entry in file.entries()
    ]


def _gsm8k(entry: object, name: str, place: str) -> tuple[str, str, str]:
    row = checked(_Gsm8k, entry, name, place)
    try:
        answer = gsm8k_reference(row.answer)
    except TaskError as error:
        raise wrong(name, place, ".answer", str(error)) from None
    steps = _CALCULATION.sub("", row.answer[: row.answer.rindex("####")]).strip()
    return row.question.strip(), f"{steps}\nThe answer is {answer}.", answer


def _math(entry: object, name: str, place: str) -> tuple[str, str, str]:
    row = checked(_Math, entry, name, place)
    return row.problem.strip(), row.solution.strip(), row.answer


def _asked(
    problems: Sequence[_Problem], shots: int, before: str, between: str, opening: str, *, stop: tuple[str, ...]
) -> list[Sample]:
    training = [problem for problem in problems if problem.training]
    asked = [problem for problem in problems if not problem.training]
    if not training or not asked:
        asked = list(problems)
        training, asked = asked[:shots], asked[shots:]
    if len(training) < shots or not asked:
        raise TaskError(
            f"{len(problems)} problems are too few: {shots} are worked examples and at least one must be left to ask; "
            "give more data."
        )
    examples = "".join(f"{before}{each.text}\n{between} {each.solution}\n\n" for each in training[:shots])
    context = opening + examples
    return [
        Sample(
            place=each.place,
            context=context,
            question=f"{before}{each.text}\n{between}",
            answers=(each.answer,),
            opening=len(context),
            chat=False,
            stop=stop,
            solution=f" {each.solution}",  # as in the examples: a likelihood is of the steps, not of a bare number
        )
        for each in asked
    ]
