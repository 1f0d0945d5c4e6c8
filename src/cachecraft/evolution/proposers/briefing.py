"""What a language model is told: the interface, the parent, better and different programs with scores, recent failures.

It reads closed generations only and depends on nothing else that could differ between two runs. Nothing is sent here.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence

from cachecraft.evolution.interface import Interface
from cachecraft.evolution.llm.calls import Message
from cachecraft.evolution.llm.faults import Fault
from cachecraft.evolution.llm.recorded import Refused
from cachecraft.evolution.population import Population
from cachecraft.evolution.prompts import Prompts
from cachecraft.evolution.records import Candidate
from cachecraft.policy.features import Features
from cachecraft.policy.source import FEATURES, METHODS

FAILURES = 4  # recent failures that are told, refused replies at most half of them
_TOLD = (Fault.OUTSIDE, Fault.NOT_ALLOWED, Fault.NUMBERS, Fault.KNOWN)  # what was wrong with a program, not a reply
_EDITABLE = {
    "constants": "numbers only; everything else stays as it is.",
    "scorer": "`score_tokens` with the helpers that only it uses; every other function stays as it is.",
    "selector": "`protect` and `select_tokens_to_keep` with their helpers; `score_tokens` stays as it is.",
    "scorer+selector": "`score_tokens`, `protect` and `select_tokens_to_keep`, with their helpers.",
    "allocation": "`allocate` with its helpers; every other function stays as it is.",
}
TASKS = (
    "Write a better program: find what its scores say it misses, and change how it judges entries.",
    "Combine what makes the better programs good with what this one does well.",
    "Try an idea that none of the programs shown uses yet.",
    "Make this program simpler without making it worse, or better without making it longer.",
)
STRUCTURE = "Change what is computed; changing only numbers was tried often enough."


def features_reference(interface: Interface) -> str:
    """The features that a candidate may read, one a line with shape and meaning."""
    lines = []
    for name in sorted(FEATURES):
        if not interface.offers(name):
            continue
        member = inspect.getattr_static(Features, name)
        said = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())
        call = ""
        if name in METHODS:
            given = list(inspect.signature(member).parameters.values())[1:]
            call = "(" + ", ".join(str(each).replace("'", "") for each in given) + ")"
        lines.append(f"- `f.{name}{call}`: {said}")
    return "\n".join(lines)


def scores_table(population: Population, candidate: Candidate) -> str:
    """A candidate's scores: over everything, and for each task and share that is dropped."""
    if candidate.fitness is None:
        return f"{candidate.name}: no score."
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for score in population.scores(candidate.number):
        if score.stage != "error":
            total, items = sums.get((score.task, score.budget), (0.0, 0))
            sums[score.task, score.budget] = total + score.value * score.items, items + score.items
    parts = [f"{task} at {budget}: {total / items:.4f}" for (task, budget), (total, items) in sorted(sums.items())]
    mean = f"{candidate.name}: {candidate.fitness.mean:.4f} over {candidate.fitness.items} items"
    return mean + (f" ({'; '.join(parts)})" if parts else "")


def brief(
    prompts: Prompts,
    population: Population,
    parent: Candidate,
    interface: Interface,
    draw: random.Random,
    *,
    characters: int,
    structure: bool = False,
    warnings: Sequence[str] = (),
    refused: Sequence[Refused] = (),
) -> tuple[Message, ...]:
    """The prompt for one proposal.

    Args:
        prompts: The texts.
        population: With no generation open.
        parent: The program to change.
        interface: What may be changed.
        draw: Which task and which other programs.
        characters: Characters that everything together may have; other programs and failures are left out first.
        structure: Ask for more than other numbers.
        warnings: Said beside the rules.
        refused: Replies of closed generations that became no candidates.
    """
    warned = "\n".join(f"- {each}" for each in warnings)
    system = prompts.filled(
        "system",
        editable=_EDITABLE[interface.level],
        features=features_reference(interface),
        warnings=f"Seen in this run and rejected:\n\n{warned}" if warned else "",
    )
    task = draw.choice(TASKS) + (f" {STRUCTURE}" if structure else "")
    better, different = _others(population, parent, draw)
    optional = {
        "failures": _failures(population, refused),
        "better": _shown(population, "Better programs", better),
        "different": _shown(population, "Programs that behave differently", different),
    }
    for dropped in ("", "different", "better", "failures"):
        optional[dropped] = ""
        asked = prompts.filled(
            "propose",
            parent_name=parent.name,
            parent_scores=scores_table(population, parent),
            parent=parent.source.strip(),
            better=optional["better"],
            different=optional["different"],
            failures=optional["failures"],
            task=task,
        )
        if len(system) + len(asked) <= characters:
            break
    return {"role": "system", "content": system}, {"role": "user", "content": asked}


def _others(population: Population, parent: Candidate, draw: random.Random) -> tuple[list[Candidate], list[Candidate]]:
    """Up to two programs above the parent, and up to two elites of other cells."""
    standing = population.archive.standing
    ranked = sorted(standing, key=lambda number: (-standing[number], number))
    own = standing.get(parent.number, 0.0)
    above = [n for n in ranked if n != parent.number and standing[n] > own][:6]
    better = sorted(draw.sample(above, min(2, len(above))), key=lambda number: -standing[number])
    cell = parent.behaviour.cell if parent.behaviour else None
    elites = {
        each.number: each
        for each in population.archive.island(parent.island)
        if each.behaviour and each.behaviour.cell != cell and each.number not in (*better, parent.number)
    }
    different = draw.sample(sorted(elites), min(2, len(elites)))
    return [population.candidates[n] for n in better], [elites[n] for n in different]


def _shown(population: Population, title: str, candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return ""
    parts = [f"{scores_table(population, each)}\n\n```python\n{each.source.strip()}\n```" for each in candidates]
    return "\n\n".join([f"## {title}", *parts])


def _failures(population: Population, refused: Sequence[Refused]) -> str:
    told = [f"- A program refused as {each.fault}: {each.sentence[:200]}" for each in refused if each.fault in _TOLD]
    lines = list(dict.fromkeys(reversed(told)))[: FAILURES // 2][::-1]
    lines = [*_recent_failures(population, FAILURES - len(lines)), *lines]
    return "\n".join(["## What failed lately", "", *lines]) if lines else ""


def _recent_failures(population: Population, most: int) -> Iterator[str]:
    """What others tried lately and why it was rejected or brought nothing."""
    failed = [
        each
        for each in population.told()
        if each.proposal.parents and each.proposal.note and (each.state != "ok" or (each.gain or 0.0) < 0)
    ]
    for each in failed[-most:]:
        why = each.reason if each.state != "ok" else f"it lost {-(each.gain or 0.0):.4f} against its parent"
        yield f"- {each.proposal.note.rstrip('.')[:120]}: {why[:200]}"
