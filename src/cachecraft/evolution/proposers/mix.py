"""Several proposers as one: a bandit gives each slot of a batch to the one that brings most improvements for its cost.

The bandit is computed anew for each batch from closed generations and the record of calls: it depends on nothing else,
so that a resumed run chooses as it would have. A slot that its proposer leaves empty goes to the mutations, if they
take part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cachecraft.evolution.llm.calls import Asked
from cachecraft.evolution.llm.settings import EndpointError
from cachecraft.evolution.llm.transport import LimitReachedError, Transport
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.bandit import Bandit
from cachecraft.evolution.proposers.llm import LlmProposer
from cachecraft.evolution.proposers.mutate import MutateProposer
from cachecraft.evolution.records import Candidate, Proposal

# What one evaluation is worth, in tokens or dollars of asking: a try costs one evaluation and what it asked for.
EVALUATION_TOKENS, EVALUATION_DOLLARS = 20_000, 0.002


class MixProposer:
    """Divides a batch among proposers."""

    name = "mix"

    def __init__(
        self, models: Sequence[LlmProposer], transport: Transport, mutate: MutateProposer | None = None
    ) -> None:
        """Begin with every proposer unknown.

        Args:
            models: Those that ask a language model, at least one.
            transport: Where calls are recorded.
            mutate: The mutations, where they take part.
        """
        self._models = {each.name: each for each in models}
        self._transport, self._mutate = transport, mutate
        self._arms = [*([mutate.name] if mutate else []), *self._models]

    def ask(self, population: Population, count: int) -> list[Proposal]:
        """Propose the next batch; see the protocol.

        Raises:
            EndpointError: The endpoint cannot be used; a limit that is reached ends the models' part only.
        """
        if self._by_money and self._transport.limited:
            return []
        bandit, costs = self._learnt(population)
        found: list[Proposal] = []
        known: set[str] = set()
        limited = False
        for slot in range(count):
            draw = random.Random(f"{self.name} {population.settings.seed} {population.generation} {slot}")
            arm = bandit.choose(draw, self._arms, costs)
            proposal: Proposal | None = None
            if arm in self._models and not limited:
                try:
                    proposal = self._models[arm].propose(population, slot, known)
                except LimitReachedError:
                    limited = True
            if proposal is None and self._mutate is not None and not (limited and self._by_money):
                proposal = self._mutate.propose(population, slot, known)
            found += [proposal] if proposal is not None else []
        if not found and not limited and self._mutate is None:
            return self._alone(population, count)
        return found

    @property
    def _by_money(self) -> bool:
        """Whether the run itself ends with the money."""
        return self._transport.settings.most_money is not None

    def _alone(self, population: Population, count: int) -> list[Proposal]:
        """Where no model gave anything usable: each may try the whole batch, and the last one's words stand."""
        last: EndpointError | None = None
        for each in self._models.values():
            try:
                if found := each.ask(population, count):
                    return found
            except EndpointError as error:
                last = error
        if last is not None:
            raise last
        return []

    def tell(self, candidate: Candidate) -> None:
        """The mutations learn which of their operators work; the bandit looks for itself."""
        if self._mutate is not None:
            self._mutate.tell(candidate)

    def _learnt(self, population: Population) -> tuple[Bandit, dict[str, float]]:
        """The bandit over what is known, and what a try of each arm costs in evaluations."""
        tries: list[tuple[int, int, str, bool]] = []
        for each in population.told():
            if each.proposal.proposer in self._arms:
                better = each.gain is not None and each.gain > 0
                tries.append((each.generation, each.slot, each.proposal.proposer, better))
        asked = [each for each in self._transport.calls.asked() if each.generation < population.generation]
        proposed: dict[tuple[int, str], int] = {}
        for generation, _, arm, _ in tries:
            proposed[generation, arm] = proposed.get((generation, arm), 0) + 1
        for call in asked:  # what was asked for and brought no candidate
            left = (call.generation, f"llm {call.model}")
            proposed[left] = proposed.get(left, 0) - 1
            if proposed[left] < 0:
                tries.append((call.generation, call.slot, left[1], False))
        bandit = Bandit(self._arms)
        for _, _, arm, better in sorted(tries):
            bandit.tell(arm, better)
        return bandit, self._costs(asked)

    def _costs(self, asked: Sequence[Asked]) -> dict[str, float]:
        spent = dict.fromkeys(self._arms, 0.0)
        count = dict.fromkeys(self._arms, 1)  # as if each had been tried once for nothing
        for each in asked:
            arm = f"llm {each.model}"
            if arm in spent:
                tokens = (each.tokens_in + each.tokens_out) / EVALUATION_TOKENS
                spent[arm] += tokens if each.money is None else each.money / EVALUATION_DOLLARS
                count[arm] += 1
        return {arm: 1 + spent[arm] / count[arm] for arm in self._arms}
