"""What every proposer is: it is asked for programs and told what became of them, and never evaluates anything itself.

A proposer depends on nothing but its settings and what it has been told, in the order of candidates; a run that is
resumed tells it everything again. What it proposes for a generation depends on the candidates of closed generations
only, so that the run is the same whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from cachecraft.evolution.interface import Interface
from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Candidate, Proposal


@dataclass(frozen=True)
class Conduct:
    """How a search goes about it for the time being; diagnosis may change it from batch to batch.

    Attributes:
        interface: What may be edited.
        again: Elites scored again on fresh items in each batch.
        gate: Whether the quick stage may stop anybody.
        evenly: Whether parents are drawn evenly from the elites, so that no line of descent rules.
        structure: Whether changes of numbers alone are left out.
        warnings: What was seen and rejected, told to proposers that can read.
    """

    interface: Interface
    again: int = 2
    gate: bool = True
    evenly: bool = False
    structure: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def structural(self) -> bool:
        """Whether changes of numbers alone are left out, others being allowed."""
        return self.structure and self.interface.level != "constants"

    def changed(self, change: Mapping[str, Any]) -> Conduct:
        """With some of it changed: plain types, of ``level``, ``features`` or this class's own names."""
        interface = self.interface.to_dict() | {key: change[key] for key in ("level", "features") if key in change}
        own = {key: value for key, value in change.items() if key not in ("level", "features", "warnings")}
        warnings = tuple(dict.fromkeys((*self.warnings, *change.get("warnings", ()))))
        return replace(self, **own, warnings=warnings, interface=Interface.from_dict(interface))

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self) | {"interface": self.interface.to_dict(), "warnings": list(self.warnings)}


class Proposer(Protocol):
    """Proposes programs."""

    @property
    def name(self) -> str:
        """What its proposals are filed under."""
        ...

    def ask(self, population: Population, count: int) -> list[Proposal]:
        """Propose the next batch.

        Args:
            population: With no generation open. Slot k of the batch belongs to island k modulo the islands; a
                proposal says its slot where an earlier one may have stayed empty.
            count: How many programs are wanted.

        Returns:
            At most so many programs that the population does not know; fewer where no more can be found, none where
            the search space is exhausted.
        """
        ...

    def tell(self, candidate: Candidate) -> None:
        """Learn what became of a candidate of a closed generation, one's own or another proposer's."""
        ...
