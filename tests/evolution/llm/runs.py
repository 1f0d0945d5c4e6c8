"""A population whose candidates are measured by a formula, for tests of what proposes and diagnoses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.protocol import Proposer
from cachecraft.evolution.records import Candidate, Fitness, Outcome, PopulationSettings, Proposal, Score

INTERFACE = Interface("scorer")
PARENT = '''"""Long keys."""

from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Long keys."""
    length = f.keys.norm(dim=-1)
    return length
'''


def worth(source: str) -> float:
    """A fitness between 0 and 1 that depends on the program only."""
    return int(hashlib.sha256(source.encode()).hexdigest()[:6], 16) / 16**6


def measured(value: float) -> Outcome:
    scores = tuple(Score("full", "m", "ruler:vt", ratio, value, 4) for ratio in ("75%", "88%"))
    return Outcome("ok", "", "full", Fitness(value, 8, 0.1), scores, 1.0)


def seeded(folder: Path, sources: Sequence[str] = (PARENT,)) -> Population:
    population = Population(folder, PopulationSettings(seed=3))
    if not population.generation:
        run(population, [Proposal(source, (), "seed", "", "seed") for source in sources])
    return population


def run(
    population: Population,
    proposals: Sequence[Proposal],
    judge: Callable[[Candidate], Outcome] = lambda each: measured(worth(each.source)),
    interface: Interface = INTERFACE,
) -> list[Candidate]:
    """One generation: begun, filled and closed."""
    for each in population.begin(proposals, interface):
        outcome = judge(each)
        place = worth(each.source + "place")
        population.note_behaviour(each.number, f"kept {each.number}", Behaviour(place, worth(each.source), "O(T)"))
        population.record(each.number, outcome)
    return population.close()


def search(population: Population, proposer: Proposer, generations: int, count: int = 3) -> None:
    for each in population.told():
        proposer.tell(each)
    for _ in range(generations):
        for each in run(population, proposer.ask(population, count)):
            proposer.tell(each)
