"""ROUGE-L over sentences and ROUGE-1, as the package ``rouge`` 1.0.1 computes them (Lin, 2004).

LongBench's summaries are scored by that package. Its ROUGE-L is the summary-level one: a text is cut at full stops,
words are what whitespace parts, and what counts of a text is its set of words, not how often each stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SMALL = 1e-8  # that package's guard against dividing by zero; it keeps its best score just below 1


@dataclass(frozen=True)
class Rouge:
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float

    @property
    def f(self) -> float:
        """The harmonic mean."""
        return 2 * self.precision * self.recall / (self.precision + self.recall + _SMALL)


def rouge_l(answer: str, reference: str) -> Rouge:
    """ROUGE-L of an answer; 0 where one of the texts has no word (the package raises an error there)."""
    ours, theirs = _sentences(answer), _sentences(reference)
    own, wanted = {word for each in ours for word in each}, {word for each in theirs for word in each}
    if not own or not wanted:
        return Rouge(0.0, 0.0)
    covered = _covered(ours, theirs)
    return Rouge(covered / len(own), covered / len(wanted))


def rouge_1(answer: str, reference: str) -> Rouge:
    """ROUGE-1 of an answer: shares of the different words; 0 where one of the texts has no word."""
    own, wanted = ({word for each in _sentences(text) for word in each} for text in (answer, reference))
    if not own or not wanted:
        return Rouge(0.0, 0.0)
    both = len(own & wanted)
    return Rouge(both / len(own), both / len(wanted))


def _sentences(text: str) -> list[list[str]]:
    # Space after a last full stop is a sentence of one empty word to that package, and the word counts.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _covered(ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> int:
    """How many different words of the reference some sentence of the answer covers, sentence by sentence.

    For each sentence of the reference the words of its longest common subsequences with all sentences of the answer
    are united, and a word is counted once in the whole text.
    """
    found: set[str] = set()
    for sentence in theirs:
        for own in ours:
            found.update(_common_words(sentence, own))
    return len(found)


def _common_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """The words of one longest common subsequence; of several equally long ones, the one that ends earliest in a."""
    lengths = [[0] * (len(b) + 1)]
    for word in a:
        above, row = lengths[-1], [0]
        for place, other in enumerate(b):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
        lengths.append(row)
    words: list[str] = []
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            words.append(a[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words[::-1]
