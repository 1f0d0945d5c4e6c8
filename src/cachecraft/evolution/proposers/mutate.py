"""The proposer that needs no language model: it works on the syntax trees of programs and writes as a person would.

Which operator is tried follows what has brought improvements. Every proposal derives from the run's seed, the
generation and the slot, and from nothing else that could differ between two runs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cachecraft.errors import PolicyLoadError, UnknownNameError
from cachecraft.evolution.interface import Interface, check_edit, only_numbers
from cachecraft.evolution.population import Population
from cachecraft.evolution.program import program_id
from cachecraft.evolution.proposers import numbers
from cachecraft.evolution.proposers.bandit import Bandit
from cachecraft.evolution.proposers.choices import ALLOCATION_OPERATORS, SELECTOR_OPERATORS, crossover, fresh
from cachecraft.evolution.proposers.form import read_form
from cachecraft.evolution.proposers.grammar import Grammar
from cachecraft.evolution.proposers.operators import Operator
from cachecraft.evolution.proposers.protocol import Conduct
from cachecraft.evolution.proposers.shaping import SCORE_OPERATORS
from cachecraft.evolution.proposers.vocabulary import clashes
from cachecraft.evolution.proposers.writing import write_form
from cachecraft.evolution.records import Candidate, Proposal
from cachecraft.policy.contract import builtin_policies, load_policy
from cachecraft.policy.source import read_source

LONGEST = 64  # lines of a program, or of its parent where that is longer
TRIES = 60  # per slot, before the slot stays empty
NUMBERS, CROSSOVER, FRESH = "numbers", "crossover", "fresh"


def operators_of(interface: Interface) -> dict[str, Operator | None]:
    """Operators that an interface allows, by name; None for those that are no plain change of one parent."""
    found: dict[str, Operator | None] = {NUMBERS: None}
    if "score_tokens" in interface.editable:
        found |= {**SCORE_OPERATORS, CROSSOVER: None, FRESH: fresh}
    if "protect" in interface.editable:
        found |= SELECTOR_OPERATORS
    if "allocate" in interface.editable:
        found |= ALLOCATION_OPERATORS
    return found


class MutateProposer:
    """Proposes changed, crossed and fresh programs."""

    name = "mutate"

    def __init__(
        self,
        interface: Interface,
        operators: Sequence[str] | None = None,
        *,
        evenly: bool = False,
        structure: bool = False,
    ) -> None:
        """Prepare the grammar.

        Args:
            interface: What may be edited.
            operators: Names of the operators to use; None for all that the interface allows. ``("fresh",)`` samples
                the grammar at random and learns nothing.
            evenly: Draw parents evenly from the elites.
            structure: Propose nothing that differs from its parent in numbers only, whichever operator made it.

        Raises:
            UnknownNameError: The interface allows no such operator.
        """
        self.interface = interface
        self._evenly, self._structure = evenly, structure
        self._grammar = Grammar(interface)
        allowed = operators_of(interface)
        for name in operators or ():
            if name not in allowed:
                raise UnknownNameError(f"operator at the level {interface.level!r}", name, allowed)
        self._operators: Mapping[str, Operator | None] = {n: allowed[n] for n in operators or allowed}
        self._bandit = Bandit(self._operators)

    def ask(self, population: Population, count: int) -> list[Proposal]:
        """Propose the next batch; see the protocol."""
        found: list[Proposal] = []
        known: set[str] = set()
        for slot in range(count):
            proposal = self.propose(population, slot, known)
            found += [proposal] if proposal is not None else []
        return found

    def propose(self, population: Population, slot: int, known: set[str]) -> Proposal | None:
        """The proposal for one slot; its canonical program is added to those that the batch knows."""
        island = slot % population.settings.islands
        draw = random.Random(f"{self.name} {population.settings.seed} {population.generation} {slot}")
        for _ in range(TRIES):
            proposal = self._try(draw, population, island)
            if proposal is None:
                continue
            program = program_id(proposal.source)
            if program not in known and population.knows(program) is None:
                known.add(program)
                return replace(proposal, slot=slot)
        return None

    def tell(self, candidate: Candidate) -> None:
        """Learn whether an operator brought an improvement; a candidate without a fitness brought none."""
        if candidate.proposal.proposer == self.name and candidate.proposal.operator in self._operators:
            self._bandit.tell(candidate.proposal.operator, candidate.gain is not None and candidate.gain > 0)

    def rates(self) -> dict[str, float]:
        """Expected rate of improvement by operator."""
        return self._bandit.rates()

    def _try(self, draw: random.Random, population: Population, island: int) -> Proposal | None:
        operator = self._bandit.choose(draw, tuple(self._operators))
        parent = population.archive.pick(draw, island, evenly=self._evenly)
        if parent is None:
            return self._unparented(draw)
        made = self._made(draw, population, island, operator, parent)
        if made is None:
            return None
        source, note, parents = made
        if len(source.splitlines()) > max(LONGEST, len(parent.source.splitlines())):
            return None
        if not self._allowed(parent.source, source):
            return None
        return Proposal(source, parents, operator, note, self.name)

    def _unparented(self, draw: random.Random) -> Proposal | None:
        """Where there is nobody to breed from yet."""
        if self._grammar.empty or "score_tokens" not in self.interface.editable:
            return None
        source = write_form(self._grammar.program(draw))
        long = len(source.splitlines()) > LONGEST
        return None if long else Proposal(source, (), FRESH, "Drew a program from the grammar", self.name)

    def _made(
        self, draw: random.Random, population: Population, island: int, operator: str, parent: Candidate
    ) -> tuple[str, str, tuple[int, ...]] | None:
        """Source, note and parents of what an operator makes; None where it does not apply."""
        if operator == NUMBERS:
            changed = numbers.changed(draw, parent.source, self.interface)
            return None if changed is None else (*changed, (parent.number,))
        try:
            form = read_form(parent.source)
            if clashes(form):
                return None
            parents: tuple[int, ...] = (parent.number,)
            if operator == CROSSOVER:
                partner = population.archive.pick(draw, island, other_than=parent)
                if partner is None or clashes(other := read_form(partner.source)):
                    return None
                change = crossover(draw, form, other, self._grammar)
                parents = (parent.number, partner.number)
            else:
                apply = self._operators[operator]
                assert apply is not None
                change = apply(draw, form, self._grammar)
        except ValueError:  # a program that cannot be bred, as one that wraps another
            return None
        if change is None:
            return None
        if operator == FRESH and not any(name not in self.interface.editable for name in form.functions):
            parents = ()
        return write_form(change[0]), change[1], parents

    def _allowed(self, parent: str, child: str) -> bool:
        try:
            read_source(child, "proposal")
        except PolicyLoadError:
            return False
        if child == parent or check_edit(parent, child, self.interface):
            return False
        return not (self._structure and only_numbers(parent, child))


def start_proposals(start: Sequence[tuple[str, str]]) -> list[Proposal]:
    """What a run begins with when it is told: these programs, by name and source."""
    builtin = set(builtin_policies())
    notes = {name: f"Built-in policy {name}" if name in builtin else f"Given policy {name}" for name, _ in start}
    return [Proposal(source, (), "seed", notes[name], "seed") for name, source in start]


def mutations(conduct: Conduct) -> MutateProposer:
    """The proposer for a conduct: without changes of numbers alone where those are left out and others are left."""
    structure = conduct.structural
    names = [name for name in operators_of(conduct.interface) if name != NUMBERS or not structure]
    return MutateProposer(conduct.interface, names, evenly=conduct.evenly, structure=structure)


def seed_proposals(
    interface: Interface, seed: int, without: Sequence[str] = (), *, grammar_programs: int = 12
) -> list[Proposal]:
    """What a run begins with: every built-in policy that can be bred from, as it is, and programs of the grammar.

    Args:
        interface: Its features must cover what a built-in policy reads.
        seed: Of the programs of several terms.
        without: Built-in policies to leave out.
        grammar_programs: How many of those.

    Returns:
        Built-in policies, one program for each kind of signal and either sign, and programs of 2 to 5 terms.
    """
    found: list[Proposal] = []
    for name in builtin_policies():
        try:
            policy = load_policy(name)
        except PolicyLoadError:
            continue  # it wraps another policy
        if name != "random" and name not in without and interface.offers(*policy.needs):
            found.append(Proposal(policy.source, (), "seed", f"Built-in policy {name}", "seed"))
    # Two methods may choose by the same program, as PagedEviction does at prefill.
    found = list({program_id(each.source): each for each in reversed(found)}.values())[::-1]
    if "score_tokens" not in interface.editable:
        return found
    grammar = Grammar(interface)
    for form, note in grammar.singles():
        found.append(Proposal(write_form(form), (), "seed", note, "seed"))
    draw = random.Random(f"seeds {seed}")
    while not grammar.empty and grammar_programs > 0:
        source = write_form(grammar.program(draw))
        if len(source.splitlines()) <= LONGEST:
            found.append(Proposal(source, (), "seed", "Drew a program from the grammar", "seed"))
            grammar_programs -= 1
    return list({program_id(each.source): each for each in reversed(found)}.values())[::-1]
