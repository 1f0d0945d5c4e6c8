"""LongBench's metrics (Bai et al., 2023, arXiv 2308.14508): question answering, summaries, classes, numbers, code.

Each takes one answer and one reference and gives 0 to 1; the benchmark takes the best over the references. Where the
original has a slip that changes a score, the docstring says so, and docs/tasks.md lists them.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec

from cachecraft.errors import TaskError
from cachecraft.tasks.scoring.edit import percent
from cachecraft.tasks.scoring.rouge import rouge_l

CHINESE_WORDS = "jieba"  # the package that parts Chinese text into words
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_CODE_NOISE = ("`", "#", "//")
# What the benchmark takes for punctuation in Chinese text; the opening 《 and the brackets 〈 〉 are not among it.
_CHINESE_MARKS = frozenset(
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏"
) | frozenset(string.punctuation)


def qa_f1(answer: str, reference: str) -> float:
    """F1 of the words, without capitals, punctuation and articles."""
    return _f1(_english_words(answer), _english_words(reference))


def qa_f1_chinese(answer: str, reference: str) -> float:
    """F1 of the words that jieba finds, without capitals, white space and punctuation of either script.

    Raises:
        TaskError: The package jieba is not installed.
    """
    return _f1(_chinese_words(answer), _chinese_words(reference))


def rouge(answer: str, reference: str) -> float:
    """F of ROUGE-L; see `cachecraft.tasks.scoring.rouge`."""
    return rouge_l(answer, reference).f


def rouge_chinese(answer: str, reference: str) -> float:
    """F of ROUGE-L over the words that jieba finds.

    Raises:
        TaskError: The package jieba is not installed.
    """
    return rouge(" ".join(cut_chinese(answer)), " ".join(cut_chinese(reference)))


def classification(answer: str, reference: str, classes: Sequence[str]) -> float:
    """1 / (number of class names found) if the right one is among them, else 0.

    Names that are part of the right name do not count as found. (The original leaves out the name after each one
    that it takes away, so that of two such names in a row one still counts there.)
    """
    found = {name for name in classes if name in answer and (name == reference or name not in reference)}
    return 1 / len(found) if reference in found else 0.0


def retrieval(answer: str, reference: str) -> float:
    """Share of the whole numbers in the answer that are the reference's (``Paragraph 7`` or ``段落7``).

    Raises:
        TaskError: The reference has no number.
    """
    wanted = re.search(r"\d+", reference)
    if wanted is None:
        raise TaskError(f"The reference {reference!r} holds no number to look for; give one such as 'Paragraph 7'.")
    return count(answer, wanted.group())


def count(answer: str, reference: str) -> float:
    """Share of the whole numbers in the answer that are the reference, digit by digit."""
    numbers = re.findall(r"\d+", answer)
    return numbers.count(reference.strip()) / len(numbers) if numbers else 0.0


def code_similarity(answer: str, reference: str) -> float:
    """Edit similarity, in whole per cent, of the reference and the answer's first line of code.

    That is the first one, after leading line breaks, without a backtick, ``#`` and ``//``; nothing if there is none.
    """
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in _CODE_NOISE)), "")
    return percent(line, reference) / 100


def first_line(answer: str) -> str:
    """What counts of an answer to trec, triviaqa, samsum and lsht: its first line, after leading line breaks."""
    return answer.lstrip("\n").split("\n")[0]


def cut_chinese(text: str) -> list[str]:
    """The words of a Chinese text.

    Raises:
        TaskError: The package jieba is not installed.
    """
    return list(_cutter()(text))


def chinese_missing() -> str:
    """What Chinese tasks need and is not installed, as half a sentence; "" if nothing."""
    if find_spec(CHINESE_WORDS):
        return ""
    return f"needs the package {CHINESE_WORDS}, which parts Chinese into words: pip install 'cachecraft-kv[chinese]'"


@lru_cache(maxsize=1)
def _cutter() -> Callable[[str], list[str]]:
    """The cutting of jieba; reading its dictionary takes a second, so it is read once."""
    if missing := chinese_missing():
        raise TaskError(f"A Chinese answer cannot be scored: this {missing}.")
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)
    cut: Callable[[str], list[str]] = jieba.lcut
    return cut


def _english_words(text: str) -> list[str]:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return _ARTICLE.sub(" ", bare).split()


def _chinese_words(text: str) -> list[str]:
    words = cut_chinese(text)
    bare = ("".join(c for c in word.lower() if not c.isspace() and c not in _CHINESE_MARKS) for word in words)
    return [word for word in bare if word]


def _f1(own: Sequence[str], wanted: Sequence[str]) -> float:
    same = sum((Counter(own) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(own), same / len(wanted)
    return 2 * precision * recall / (precision + recall)
