"""What every proposer is: it is asked for programs and told what became of them, and never evaluates anything itself.

A proposer depends on nothing but its settings and what it has been told, in the order of candidates; a run that is
resumed tells it everything again. What it proposes for a generation depends on the candidates of closed generations
only, so that the run is the same whatever the number of workers.
"""

from __future__ import annotations

from typing import Protocol

from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Candidate, Proposal


class Proposer(Protocol):
    """Proposes programs."""

    @property
    def name(self) -> str:
        """What its proposals are filed under."""
        ...

    def ask(self, population: Population, count: int) -> list[Proposal]:
        """Propose the next batch.

        Args:
            population: With no generation open. Slot k of the batch belongs to island k modulo the islands.
            count: How many programs are wanted.

        Returns:
            At most so many programs that the population does not know; fewer where no more can be found, none where
            the search space is exhausted.
        """
        ...

    def tell(self, candidate: Candidate) -> None:
        """Learn what became of a candidate of a closed generation, one's own or another proposer's."""
        ...
