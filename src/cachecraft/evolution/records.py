"""What a run remembers of a candidate: proposal, outcome, scores and fitness. Values only; storing is elsewhere.

A failure is a state with a reason, never a number: only a checked finite float is ever a fitness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from cachecraft.errors import RunError
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface

State = Literal["seen", "rejected", "timeout", "crashed", "suspect", "ok"]
STATES: tuple[State, ...] = get_args(State)


def checked_number(value: object, name: str) -> float:
    """A finite float.

    Raises:
        RunError: It is anything else: a bool, a text, a whole number, NaN or infinity.
    """
    if not isinstance(value, float) or not math.isfinite(value):
        raise RunError(f"A {name} of {value!r} ({type(value).__name__}) is no finite float and cannot be recorded.")
    return float(value)


@dataclass(frozen=True)
class PopulationSettings:
    """What a population is made for; a folder's commands must agree in it.

    Attributes:
        seed: Everything by chance derives from it.
        islands: Populations that breed apart; slot k of a batch belongs to island k modulo this.
        migrate_every: Generations after which each island's best also lives on the next island.
    """

    seed: int = 0
    islands: int = 1
    migrate_every: int = 10

    def __post_init__(self) -> None:
        """Refuse fewer than one island or generation."""
        if self.islands < 1 or self.migrate_every < 1:
            raise RunError(
                f"{self.islands} islands and a migration every {self.migrate_every} generations mean nothing."
            )


@dataclass(frozen=True)
class Cost:
    """What a proposal cost; money is None where it is unknown, which is not the same as free."""

    tokens_in: int = 0
    tokens_out: int = 0
    money: float | None = 0.0


@dataclass(frozen=True)
class Proposal:
    """A program that a proposer offers.

    Attributes:
        source: The policy's text.
        parents: Numbers of the candidates it was made from; the first is the one whose protected parts it shares.
        operator: How it was made, for example ``"add term"``; ``"seed"`` for a seed.
        note: What was done, in one sentence.
        proposer: Name of the proposer.
        cost: What asking cost.
        slot: The place in the batch that it was made for; None for its place in the list.
    """

    source: str
    parents: tuple[int, ...] = ()
    operator: str = "seed"
    note: str = ""
    proposer: str = "seed"
    cost: Cost = field(default_factory=Cost)
    slot: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Score:
    """The mean over `items` items of one task, at one budget, under one model, in one stage of the cascade."""

    stage: str
    model: str
    task: str
    budget: str
    value: float
    items: int

    def __post_init__(self) -> None:
        """Only a finite float is ever a score."""
        checked_number(self.value, "score")


@dataclass(frozen=True)
class Fitness:
    """A mean over items, and how far apart the items were.

    Attributes:
        mean: The mean fitness.
        items: Items that it is the mean of, at least 1.
        spread: Standard deviation of the fitness over items.
    """

    mean: float
    items: int
    spread: float

    def __post_init__(self) -> None:
        """Only finite floats over at least one item."""
        checked_number(self.mean, "fitness")
        if checked_number(self.spread, "spread") < 0 or type(self.items) is not int or self.items < 1:
            raise RunError(f"A fitness over {self.items!r} items with spread {self.spread} means nothing.")

    def standing(self, spread: float) -> float:
        """The mean less one standard error, `spread` being that of an item in the whole population.

        One spread for all means that candidates of equally many items are ordered by their means, and that one with
        fewer items has to beat an often scored elite by more than its luck.
        """
        return self.mean - spread / math.sqrt(self.items)


def pooled(parts: Sequence[Fitness]) -> Fitness:
    """The fitness over all items of several scorings, at least one."""
    items = sum(part.items for part in parts)
    mean = math.fsum(part.mean * part.items for part in parts) / items
    square = math.fsum((part.spread**2 + (part.mean - mean) ** 2) * part.items for part in parts) / items
    return Fitness(mean, items, math.sqrt(square))


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    Attributes:
        state: Any of `STATES` but ``seen``.
        reason: Why, in one sentence; "" if it is ok.
        stage: The last stage that it reached.
        fitness: Present exactly if it is ok.
        scores: What was measured, whatever the state.
        seconds: Time that the evaluation took.
    """

    state: State
    reason: str = ""
    stage: str = ""
    fitness: Fitness | None = None
    scores: tuple[Score, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a number without success, and success without a number."""
        if self.state not in STATES or self.state == "seen":
            raise RunError(f"{self.state!r} is no outcome; it is one of {', '.join(STATES[1:])}.")
        if (self.state == "ok") != (self.fitness is not None):
            raise RunError(f"An outcome in state {self.state!r} cannot have the fitness {self.fitness}.")
        if self.state != "ok" and not self.reason:
            raise RunError(f"An outcome in state {self.state!r} needs a reason.")


@dataclass(frozen=True)
class Candidate:
    """A candidate as the population knows it; fitness counts closed generations only.

    Attributes:
        number: From 1, in the order of being proposed.
        generation, slot: When it was proposed, and its place in that batch.
        island: The island it belongs to.
        proposal: What was proposed.
        program: Id of the canonical program.
        interface: What it could edit.
        state, reason, stage: What became of it.
        attempts: How often its evaluation was begun.
        signature: Id of what it keeps on the probe; "" while unknown.
        behaviour: Its behaviour, once known.
        fitness: Over all its items, once it is ok.
        gain: By how much it is better than the best of its parents (or, without parents, than the median of the
            archive) when its generation was closed; None where there is no fitness.
    """

    number: int
    generation: int
    slot: int
    island: int
    proposal: Proposal
    program: str
    interface: Interface
    state: State
    reason: str
    stage: str
    attempts: int
    signature: str
    behaviour: Behaviour | None
    fitness: Fitness | None
    gain: float | None

    @classmethod
    def new(
        cls, place: tuple[int, int, int, int], proposal: Proposal, program: str, interface: Interface, reason: str = ""
    ) -> Self:
        """One that was just proposed: its number, generation, slot and island are `place`; with a reason, rejected."""
        number, generation, slot, island = place
        return cls(
            number=number,
            generation=generation,
            slot=slot,
            island=island,
            proposal=proposal,
            program=program,
            interface=interface,
            state="rejected" if reason else "seen",
            reason=reason,
            stage="program" if reason else "",
            attempts=0,
            signature="",
            behaviour=None,
            fitness=None,
            gain=None,
        )

    @property
    def source(self) -> str:
        """The policy's text."""
        return self.proposal.source

    @property
    def name(self) -> str:
        """How displays and files call it: ``c0042``."""
        return f"c{self.number:04d}"
