"""The proposer that asks a language model: one reply, read strictly and checked, and one chance to mend it.

A reply that cannot be used is counted by its fault and becomes no candidate. Every prompt derives from the run's seed,
the generation and the slot and from closed generations; what the model answers is recorded, so that a resumed run asks
for nothing twice and a replayed run asks for nothing at all.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace

from cachecraft.evolution.gate import check_source
from cachecraft.evolution.interface import check_edit, only_numbers
from cachecraft.evolution.llm.breaker import NoAnswerError
from cachecraft.evolution.llm.calls import Place, Reply
from cachecraft.evolution.llm.faults import Fault, ReplyError
from cachecraft.evolution.llm.replies import Edit, read_reply
from cachecraft.evolution.llm.settings import EndpointError, RefusedCallError
from cachecraft.evolution.llm.transport import LimitReachedError, Transport
from cachecraft.evolution.population import Population
from cachecraft.evolution.program import program_id
from cachecraft.evolution.prompts import Prompts
from cachecraft.evolution.proposers.briefing import brief
from cachecraft.evolution.proposers.protocol import Conduct
from cachecraft.evolution.records import Candidate, Cost, Proposal

ROUNDS = 3  # batches without a usable reply after which the run stops
USED = "used"


class LlmProposer:
    """Proposes what a language model makes of a parent."""

    def __init__(self, model: str, conduct: Conduct, transport: Transport, prompts: Prompts) -> None:
        """Stand ready.

        Args:
            model: Name of the model.
            conduct: What may be edited, and how parents are chosen.
            transport: How it is asked.
            prompts: What it is told.
        """
        self.model, self.name = model, f"llm {model}"
        self._conduct, self._transport, self._prompts = conduct, transport, prompts
        self._faults: Counter[str] = Counter()  # of the tries that an error tells of

    def ask(self, population: Population, count: int) -> list[Proposal]:
        """Propose the next batch; see the protocol.

        Raises:
            EndpointError: The endpoint cannot be used, or gave no usable reply in several batches.
        """
        fresh, round_ = 0, 0
        recorded = self._transport.rounds(population.generation)
        while fresh < ROUNDS or round_ < recorded:
            calls = self._transport.totals.calls
            found: list[Proposal] = []
            known: set[str] = set()
            if round_ <= recorded:
                self._faults.clear()
            try:
                for slot in range(count):
                    proposal = self.propose(population, slot, known, round_)
                    found += [proposal] if proposal is not None else []
            except LimitReachedError:
                return found
            if found:
                return found
            if round_ >= recorded:
                if self._transport.totals.calls == calls:
                    return []
                fresh += 1
            round_ += 1
        faults = ", ".join(f"{count} {name}" for name, count in self._faults.most_common())
        if not faults:
            settings = self._transport.settings
            raise EndpointError(
                f"{settings.base_url} gave no reply within {settings.deadline:g} seconds "
                f"in {ROUNDS * count} tries; start it or give it more --llm-seconds, and run the same command again."
            )
        raise EndpointError(
            f"The model {self.model} gave no usable program in {ROUNDS * count} tries (replies: {faults}); run the "
            "same command to go on trying, or begin another run with --run and another --llm-model."
        )

    def tell(self, candidate: Candidate) -> None:
        """Nothing is learnt here: prompts are made from the population."""

    def propose(self, population: Population, slot: int, known: set[str], round_: int = 0) -> Proposal | None:
        """The proposal for one slot, or None where the model gave nothing usable.

        Args:
            population: With no generation open.
            slot: The place in the batch.
            known: Canonical programs of the batch so far; the proposal's is added.
            round_: Which try at the batch this is.

        Raises:
            LimitReachedError: Asking could pass a limit.
            EndpointError: The endpoint cannot be used.
        """
        place = Place(population.generation, slot, round_)
        key = f"{self.name} {population.settings.seed} {place.generation} {slot} {round_}"
        draw = random.Random(key)
        conduct = self._conduct
        parent = population.archive.pick(draw, slot % population.settings.islands, evenly=conduct.evenly)
        if parent is None:
            return None
        messages = brief(
            self._prompts,
            population,
            parent,
            conduct.interface,
            draw,
            characters=self._transport.settings.prompt_characters,
            structure=conduct.structure,
            warnings=conduct.warnings,
            refused=self._transport.calls.refused(population.generation),
        )
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
        deadline = self._transport.deadline()
        costs: list[Cost] = []
        for turn in (0, 1):
            try:
                answer = self._transport.ask(replace(place, turn=turn), self.model, messages, seed + turn, deadline)
            except NoAnswerError:
                return None
            except RefusedCallError:
                if turn:  # the repair does not fit where the prompt did
                    return None
                raise
            costs.append(_cost(answer.reply, answer.money))
            try:
                edit = self._read(answer.reply, parent, population, known)
            except ReplyError as error:
                self._transport.calls.judged(answer.call, error.fault.value, str(error))
                self._faults[error.fault.value] += 1
                if not error.mendable:
                    return None
                said = {"role": "assistant", "content": answer.reply.text or ""}
                problem = self._prompts.filled("repair", problem=str(error))
                messages = (*messages, said, {"role": "user", "content": problem})
                continue
            self._transport.calls.judged(answer.call, USED)
            known.add(program_id(edit.source))
            operator = f"{edit.form}, mended" if turn else edit.form
            note = edit.note or "The model gave no reason"
            return Proposal(edit.source, (parent.number,), operator, note, self.name, _summed(costs), slot)
        return None

    def _read(self, reply: Reply, parent: Candidate, population: Population, known: set[str]) -> Edit:
        """A reply's program, checked as far as can be without running it.

        Raises:
            ReplyError: It is not used.
        """
        edit = read_reply(reply.text, parent.source, finish=reply.finish, refused=reply.refused)
        try:
            program = program_id(edit.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            raise ReplyError(Fault.SYNTAX, f"The program with the edit is not valid Python{line}: {error}.") from error
        if program == parent.program:
            raise ReplyError(Fault.UNCHANGED, "The program with the edit does what it did before; change what it does.")
        if sentences := check_source(edit.source):
            raise ReplyError(Fault.NOT_ALLOWED, " ".join(sentences))
        if sentences := check_edit(parent.source, edit.source, self._conduct.interface):
            raise ReplyError(Fault.OUTSIDE, " ".join(sentences))
        if self._conduct.structural and only_numbers(parent.source, edit.source):
            raise ReplyError(Fault.NUMBERS, "Only numbers were changed, which was tried enough; compute otherwise.")
        if program in known or population.knows(program) is not None:
            raise ReplyError(Fault.KNOWN, "This program was tried before; try something else.")
        return edit


def _cost(reply: Reply, money: float | None) -> Cost:
    return Cost(reply.tokens_in or 0, reply.tokens_out or 0, money)


def _summed(costs: list[Cost]) -> Cost:
    money = [each.money for each in costs]
    known = None if None in money else sum(each for each in money if each is not None)
    return Cost(sum(each.tokens_in for each in costs), sum(each.tokens_out for each in costs), known)
