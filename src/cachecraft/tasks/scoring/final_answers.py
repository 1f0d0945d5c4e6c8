"""Final answers found in worked solutions: GSM8K's numbers, competition mathematics, choices, line retrieval."""

from __future__ import annotations

import re

from cachecraft.errors import TaskError

_NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"
_STRICT = re.compile(rf"The answer is\s*({_NUMBER})", re.IGNORECASE)
_FLEXIBLE = re.compile(rf"({_NUMBER})")
_CHOICES = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))
_SPACING = re.compile(r"\\[,!;: ]|\\q?quad|~")
_WRAPPERS = ("text", "mathrm", "mathbf", "textbf", "mbox")
_THE_ANSWER = re.compile(r"(?:final )?answer is:?\s*(.+)", re.IGNORECASE)


def gsm8k_strict(answer: str, reference: str) -> float:
    """1 if the first ``The answer is N`` gives the reference's number, else 0 (GSM8K after worked examples).

    Commas, dollar signs and a final full stop do not matter.
    """
    found = _STRICT.search(answer)
    return float(found is not None and plain_number(found.group(1)) == plain_number(reference))


def gsm8k_flexible(answer: str, reference: str) -> float:
    """1 if the last number in the answer is the reference's, else 0."""
    found = _FLEXIBLE.findall(answer)
    return float(bool(found) and plain_number(found[-1]) == plain_number(reference))


def plain_number(text: str) -> str:
    """A number as it is compared: without commas, dollar signs, white space and a final full stop or ``.00``."""
    bare = re.sub(r"[,$\s]", "", text).rstrip(".")
    return re.sub(r"\.0+$", "", bare)


def gsm8k_reference(solution: str) -> str:
    """The number after ``####`` in one of GSM8K's worked solutions.

    Raises:
        TaskError: There is none.
    """
    found = re.search(rf"####\s*({_NUMBER})\s*\.?\s*$", solution)
    if found is None:
        raise TaskError("does not end in '#### ' and a number")
    return plain_number(found.group(1))


def choice(answer: str, reference: str) -> float:
    """1 if the answer says ``The correct answer is (X)``, or without the brackets, with the reference's letter, else 0.

    Asterisks are taken away first; any other wording is wrong (LongBench v2, arXiv 2412.15204).
    """
    bare = answer.replace("*", "")
    found = next((match for each in _CHOICES if (match := each.search(bare))), None)
    return float(found is not None and found.group(1) == reference)


def last_number(answer: str, reference: str) -> float:
    """1 if the last whole number in the answer is the reference (LongEval's line retrieval), else 0."""
    found = re.findall(r"\d+", answer)
    return float(bool(found) and int(found[-1]) == int(reference))


def math_match(answer: str, reference: str) -> float:
    r"""1 if the final answer, both sides brought to one way of writing, is the reference (MATH, arXiv 2103.03874).

    The final answer is what the last ``\boxed{…}`` holds, else what follows the last "answer is", else nothing.
    The comparison is of text: ``1/2`` and ``\frac{1}{2}`` are the same, ``0.5`` is not.
    """
    found = final_formula(answer)
    return float(found is not None and plain_formula(found) == plain_formula(reference))


def final_formula(answer: str) -> str | None:
    """The formula that a solution ends in; None if it says none."""
    start = max(answer.rfind("\\boxed{"), answer.rfind("\\fbox{"))
    if start >= 0:
        inside = answer.index("{", start) + 1
        depth = 1
        for place in range(inside, len(answer)):
            depth += {"{": 1, "}": -1}.get(answer[place], 0)
            if not depth:
                return answer[inside:place]
        return None  # the answer was cut off inside of it
    said = _THE_ANSWER.findall(answer)
    return said[-1].strip().rstrip(".").strip() if said else None


def plain_formula(text: str) -> str:
    """One way of writing for the formulas that differ in looks only."""
    bare = text.strip().rstrip(".").replace("\\left", "").replace("\\right", "").replace("\n", "")
    bare = bare.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    bare = _SPACING.sub("", bare.strip("$").replace("\\$", "").replace("\\%", "").replace("%", ""))
    for wrapper in _WRAPPERS:
        bare = re.sub(rf"\\{wrapper}\{{([^{{}}]*)\}}", r"\1", bare)
    bare = bare.replace("^\\circ", "").replace("^{\\circ}", "").replace("\\degree", "").replace(" ", "")
    bare = re.sub(r"^[A-Za-z]\w?(?:\(\w\))?=", "", bare)  # "x=5" is 5
    bare = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", bare)
    bare = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", bare)
    bare = re.sub(r"^(-?\d+)/(\d+)$", lambda part: _fraction(part.group(1), part.group(2)), bare)
    bare = re.sub(r"(\d),(?=\d{3}(?:\D|$))", r"\1", bare)
    bare = re.sub(r"(^|[^\d])\.(\d)", r"\g<1>0.\2", bare)
    return re.sub(r"^(-?\d+)\.0+$", r"\1", bare)


def _fraction(above: str, below: str) -> str:
    return f"-\\frac{{{above[1:]}}}{{{below}}}" if above.startswith("-") else f"\\frac{{{above}}}{{{below}}}"
