"""The story of a discovery in a page: what was tried, what was diagnosed, what changed, what it brought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cachecraft.evolution.llm.calls import Calls
from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Candidate
from cachecraft.evolution.remedies import read_diagnoses
from cachecraft.reporting.search import calls_told, describe_search

STEPS = 12  # of the best's rise that are told


def explain_run(folder: Path) -> list[str]:
    """The story, as lines of plain text.

    Raises:
        RunError: The folder holds no discovery.
    """
    with Population(folder) as population:
        told = population.told()
        return [
            *describe_search(folder),
            "",
            *_proposers(told),
            *_calls(folder),
            *_rise(population, told),
            *_diagnoses(folder),
        ]


def _proposers(told: Sequence[Candidate]) -> Iterator[str]:
    """Who proposed how much, and what it brought."""
    yield "Who proposed:"
    for name in dict.fromkeys(each.proposal.proposer for each in told):
        own = [each for each in told if each.proposal.proposer == name]
        good = sum(each.state == "ok" for each in own)
        better = sum(each.gain is not None and each.gain > 0 for each in own)
        yield f"  {name}: {len(own)} candidates, {good} measured, {better} better than what they were made from"
    yield ""


def _calls(folder: Path) -> Iterator[str]:
    calls = Calls(folder)
    totals = calls.totals()
    calls.close()
    if totals.calls:
        yield "What asking language models came to:"
        yield from (f"  {line}" for line in calls_told(totals))
        yield ""


def _rise(population: Population, told: Sequence[Candidate]) -> Iterator[str]:
    """Each candidate that was the best of those before it, by what is known of all today."""
    standing = population.archive.standing
    best = float("-inf")
    steps = []
    for each in told:
        if standing.get(each.number, best) > best and each.fitness is not None:
            best = standing[each.number]
            made = f"{each.proposal.proposer}, {each.proposal.operator}: {each.proposal.note}"
            steps.append(f"  {each.name} {each.fitness.mean:.4f} over {each.fitness.items} items ({made})")
    yield "How the best rose:"
    if len(steps) > STEPS:
        yield f"  … {len(steps) - STEPS} steps before"
    yield from steps[-STEPS:]
    yield ""


def _diagnoses(folder: Path) -> Iterator[str]:
    found = read_diagnoses(folder)
    yield "What was diagnosed and done:" if found else "Nothing was diagnosed."
    for each in found:
        what = f" ({each.what})" if each.what else ""
        yield f"  {each.number}. Before batch {each.generation}: {each.kind}{what}. {each.evidence}"
        yield f"     Done: {each.action}."
        if each.reviewed is not None:
            yield f"     Before batch {each.reviewed}: {each.verdict}, {each.result}."
        else:
            yield "     Not reviewed yet."
