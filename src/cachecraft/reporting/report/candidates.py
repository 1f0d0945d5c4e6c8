"""A discovery's candidates in the form that the page's script reads: small enough for thousands in one file.

Programs of one search share nearly all their lines, so each line is stored once and a program is a list of numbers;
the script puts programs together again and finds what changed between two of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from cachecraft.evolution.archive import Archive
from cachecraft.evolution.records import Candidate
from cachecraft.reporting.report.runs import RunFolder

REPLIES = 1_500_000  # characters of language models' replies in one page
LONG = 6_000  # characters of one reply


class Numbered:
    """Texts that get a number each, in the order of being met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """All texts, by number."""
        return list(self._numbers)


def candidate_data(run: RunFolder, candidates: Mapping[int, Candidate], archive: Archive) -> dict[str, Any]:
    """Everything that the page shows of candidates.

    Args:
        run: The run.
        candidates: All of them.
        archive: Of those that count.
    """
    lines, words = Numbered(), Numbered()
    scores, replies = _scores(run, words), _replies(run)
    entries = [
        {
            "n": each.number,
            "g": each.generation,
            "i": each.island,
            "p": list(each.proposal.parents),
            "by": words(each.proposal.proposer),
            "op": words(each.proposal.operator),
            "why": each.proposal.note,
            "s": words(each.state),
            "r": each.reason,
            "t": words(each.stage),
            "f": _fitness(each),
            "gain": None if each.gain is None else round(each.gain, 5),
            "b": words(each.behaviour.label if each.behaviour else ""),
            "src": [lines(line) for line in each.source.splitlines()],
            "sc": scores.get(each.number, []),
            "cost": [each.proposal.cost.tokens_in, each.proposal.cost.tokens_out, each.proposal.cost.money],
            **({"says": reply} if (reply := replies.get((each.generation, each.slot))) else {}),
        }
        for _, each in sorted(candidates.items())
    ]
    best = archive.best.number if archive.best else None
    return {"lines": lines.texts, "words": words.texts, "candidates": entries, "best": best}


def _fitness(candidate: Candidate) -> list[float | int] | None:
    found = candidate.fitness
    return None if found is None or candidate.state != "ok" else [round(found.mean, 5), found.items]


def _scores(run: RunFolder, words: Numbered) -> dict[int, list[list[float | int]]]:
    """By candidate: stage, model, task, budget, mean over all batches, items."""
    found: dict[int, list[list[float | int]]] = defaultdict(list)
    rows = run.rows(
        "candidate_scores",
        "SELECT candidate, stage, model, task, budget, SUM(value * items) / SUM(items), SUM(items) "
        "FROM candidate_scores GROUP BY candidate, stage, model, task, budget ORDER BY candidate, MIN(rowid)",
    )
    for number, stage, model, task, budget, value, items in rows:
        names = [words(stage), words(model), words(str(task).removeprefix("ruler:")), words(budget)]
        found[number].append([*names, round(value, 4), items])
    return found


def _replies(run: RunFolder) -> dict[tuple[int, int], list[list[str]]]:
    """What language models said, by batch and place in it: (model, what came of it, text), as far as there is room."""
    found: dict[tuple[int, int], list[list[str]]] = defaultdict(list)
    room = REPLIES
    for generation, slot, model, outcome, text in run.rows(
        "llm_calls",
        "SELECT generation, slot, model, outcome, text FROM llm_calls WHERE text IS NOT NULL ORDER BY number DESC",
    ):
        shown = text if len(text) <= LONG else f"{text[:LONG]}…"
        room -= len(shown)
        if room < 0:
            break
        found[generation, slot].insert(0, [model, outcome, shown])
    return found
