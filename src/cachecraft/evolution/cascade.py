"""The cascade: from reading a candidate's text to measuring it on every item, each stage dearer than the one before.

0 static: the text may run and edits only what it may. 1 contract: the invariants, on synthetic and recorded arrays, in
the sandbox. 2 quick: likelihood on a few items, against those who lead there; beside it the error of the attention's
output. 3 full: all items at every ratio. Whether a stage predicts the next is measured, and one that does not lets
everybody pass. Every rejection has a reason; nothing here is proposed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cachecraft.evolution.admission import contract_stage, static_stage
from cachecraft.evolution.arena import Arena, ArenaItem, Scale
from cachecraft.evolution.behaviour import observe
from cachecraft.evolution.fitness import Measured, fitness_of, much_worse, predicts
from cachecraft.evolution.interface import check_edit
from cachecraft.evolution.population import Population
from cachecraft.evolution.program import behaviour_id
from cachecraft.evolution.records import Candidate, Outcome, Score, State
from cachecraft.evolution.settings import DiscoverySettings
from cachecraft.policy.source import cost_class, read_source
from cachecraft.sandbox import Ask, Choice, Program, Sandbox, Verdict, shared_out
from cachecraft.sandbox import State as Fate

STAGES = ("static", "contract", "quick", "full")
PROBES = 2  # recorded items on which the contract is checked and behaviour is observed
MARGIN = 1.0  # standard errors by which a candidate may trail and still pass

_STATES: Mapping[Fate, State] = {Fate.TIMEOUT: "timeout", Fate.CRASHED: "crashed", Fate.MEMORY: "crashed"}


@dataclass
class _Run:
    """A candidate on its way through the cascade."""

    candidate: Candidate
    program: Program
    measured: list[Measured] = field(default_factory=list)
    error: float | None = None
    seconds: float = 0.0
    failed: bool = False


Work = Callable[[Sandbox, _Run], Verdict]


class Cascade:
    """Evaluates the open generation of a population."""

    def __init__(
        self, arenas: Sequence[Arena], scale: Scale, settings: DiscoverySettings, sandboxes: Sequence[Sandbox]
    ) -> None:
        """Make the items known to the sandboxes as they are needed.

        Args:
            arenas: One for each model.
            scale: What likelihoods are told by.
            settings: The discovery's.
            sandboxes: One for each worker.
        """
        self._arenas, self._scale, self._settings = list(arenas), scale, settings
        self._sandboxes = list(sandboxes)
        self._loaded: set[str] = set()
        self.open = False  # every candidate goes on to the full stage

    def evaluate(self, population: Population) -> Iterator[Candidate]:
        """Evaluate whatever the open generation waits for; yields each candidate as its outcome is stored."""
        runs = [_Run(each, Program(each.name, each.source)) for each in population.pending()]
        for each in runs:
            population.attempt(each.candidate.number)
        yield from self._static(population, runs)
        yield from self._contract(population, [run for run in runs if not run.failed])
        twins = {each.number for each in population.reject_twins()}
        for run in runs:
            if run.candidate.number in twins:
                run.failed = True
                yield population.candidate(run.candidate.number)
        going = [run for run in runs if not run.failed]
        leaders = self._leaders(population)
        quick = self._settings.quick
        yield from self._measure(population, going, 0, quick, "quick")
        going = [run for run in going if not run.failed]
        chosen = [run for run in going if self._passes(population, run, leaders)]
        yield from self._measure(population, chosen, quick, self._settings.items, "full")
        for run in going:
            if not run.failed:
                stage = "full" if run in chosen else "quick"
                population.record(run.candidate.number, self._outcome(run, stage))
                yield population.candidate(run.candidate.number)
        yield from self._again(population)

    # Stages 0 and 1.

    def _static(self, population: Population, runs: Sequence[_Run]) -> Iterator[Candidate]:
        for run in runs:
            verdict = static_stage(run.program)
            reason = verdict.reason
            parents = run.candidate.proposal.parents
            if verdict.ok and parents:
                parent = population.candidates[parents[0]]
                reason = " ".join(check_edit(parent.source, run.program.source, run.candidate.interface))
            if reason:
                yield self._reject(population, run, Outcome("rejected", reason, "static"))

    def _contract(self, population: Population, runs: Sequence[_Run]) -> Iterator[Candidate]:
        asks = [Ask(self._known(item), item.keeps) for item in self._arenas[0].items(0, PROBES)[:PROBES]]
        for run, verdict in self._apart(runs, lambda sandbox, run: contract_stage(sandbox, run.program, asks)):
            run.seconds += verdict.seconds
            if not verdict.ok:
                yield self._reject(population, run, _refused(verdict, "contract"))
                continue
            masks = [choice.masks(budget) for choice in verdict.choices for budget in range(len(choice.bits))]
            cost = cost_class(read_source(run.program.source, run.program.name).needs)
            population.note_behaviour(run.candidate.number, behaviour_id(masks), observe(masks, cost))

    # Stages 2 and 3.

    def _measure(
        self, population: Population, runs: Sequence[_Run], first: int, last: int, stage: str
    ) -> Iterator[Candidate]:
        """Measure runs on items first … last - 1 of every task and model."""
        for arena in self._arenas:
            items = arena.items(first, last)
            if items and runs:
                going = [run for run in runs if not run.failed]
                yield from self._measure_on(population, going, arena, items, stage)

    def _measure_on(
        self, population: Population, runs: Sequence[_Run], arena: Arena, items: Sequence[ArenaItem], stage: str
    ) -> Iterator[Candidate]:
        asks = [Ask(self._known(item), item.keeps) for item in items]
        chosen: list[tuple[_Run, tuple[Choice, ...]]] = []
        for run, verdict in self._apart(runs, lambda sandbox, run: sandbox.run(run.program, asks)):
            run.seconds += verdict.seconds
            if verdict.ok:
                chosen.append((run, verdict.choices))
            else:
                yield self._reject(population, run, _refused(verdict, stage))
        for place, item in enumerate(items):
            began = time.monotonic()
            ratios = range(len(item.keeps))
            masks = [choices[place].masks(ratio) for _, choices in chosen for ratio in ratios]
            found = iter(arena.likelihoods(item, masks))
            for run, _ in chosen:
                for ratio in ratios:
                    value = next(found)
                    told = self._scale.recovered(arena.subject.name, item, ratio, value.mean_logprob)
                    run.measured.append(Measured(arena.subject.name, item, ratio, told, value))
                run.seconds += (time.monotonic() - began) / len(chosen)
            if stage == "quick" and arena is self._arenas[0] and place == 0:
                errors = arena.error(item, masks)
                for number, (run, _) in enumerate(chosen):
                    own = errors[number * len(item.keeps) : (number + 1) * len(item.keeps)]
                    run.error = sum(own) / len(own)

    def _passes(self, population: Population, run: _Run, leaders: Mapping[int, float]) -> bool:
        """Whether a candidate is worth all items: it leads its cell on the quick ones, or nearly."""
        if not self.gates(population):
            return True
        behaviour = population.candidate(run.candidate.number).behaviour
        assert behaviour is not None
        own = fitness_of(run.measured)
        bar = leaders.get(behaviour.cell, -math.inf)
        return own.mean + MARGIN * own.spread / math.sqrt(own.items) >= bar

    def _leaders(self, population: Population) -> dict[int, float]:
        """For each cell what its elite scores on the quick items."""
        means = population.stage_means()
        found: dict[int, float] = {}
        for (_, cell), elite in population.archive.elites.items():
            quick = means.get(elite.number, {}).get("quick")
            if quick is not None:
                found[cell] = max(found.get(cell, -math.inf), quick)
        return found

    # Elites again.

    def _again(self, population: Population) -> Iterator[Candidate]:
        """Score those whose turn it is on the next items that they have not seen."""
        for candidate in population.pending_again():
            assert candidate.fitness is not None
            run = _Run(candidate, Program(candidate.name, candidate.source))
            seen = candidate.fitness.items // (len(self._arenas) * max(1, len(self._arenas[0].tasks)))
            failure: Outcome | None = None
            for arena in self._arenas:
                items = arena.items(seen, seen + self._settings.quick)
                asks = [Ask(self._known(item), item.keeps) for item in items]
                verdict = self._sandboxes[0].run(run.program, asks)
                if not verdict.ok:
                    failure = _refused(verdict, "again")
                    break
                for item, choice in zip(items, verdict.choices, strict=True):
                    masks = [choice.masks(ratio) for ratio in range(len(item.keeps))]
                    for ratio, value in enumerate(arena.likelihoods(item, masks)):
                        told = self._scale.recovered(arena.subject.name, item, ratio, value.mean_logprob)
                        run.measured.append(Measured(arena.subject.name, item, ratio, told, value))
            outcome = failure or self._outcome(run, "again")
            if outcome.fitness is not None and much_worse(candidate.fitness, outcome.fitness):
                outcome = Outcome(
                    "suspect",
                    f"On fresh items it recovers {outcome.fitness.mean:.2f} after {candidate.fitness.mean:.2f} on "
                    "the items of its search: it may know places or keys by heart.",
                    "again",
                    scores=outcome.scores,
                )
            population.record_again(candidate.number, outcome)
            yield candidate

    # What stages are worth.

    def gates(self, population: Population) -> bool:
        """Whether the quick stage may stop anybody: it predicts the full one, as far as is known."""
        return not self.open and predicts(population)

    def _outcome(self, run: _Run, stage: str) -> Outcome:
        if not all(math.isfinite(each.recovered) for each in run.measured):
            return Outcome("rejected", "The model's pass over what it keeps gave no finite likelihood.", stage)
        quick = self._settings.quick * sum(len(arena.tasks) for arena in self._arenas) * len(self._settings.ratios)
        parts = {stage: run.measured} if stage == "again" else {"quick": run.measured[:quick]}
        if stage == "full":
            parts["full"] = run.measured[quick:]
        scores = [score for name, measured in parts.items() for score in self._scores(name, measured)]
        if run.error is not None:
            first = self._arenas[0]
            scores.append(Score("error", first.subject.name, first.tasks[0].name, "all", run.error, 1))
        return Outcome("ok", "", stage, fitness_of(run.measured), tuple(scores), run.seconds)

    def _scores(self, stage: str, measured: Sequence[Measured]) -> Iterator[Score]:
        groups: dict[tuple[str, str, int], list[float]] = {}
        for each in measured:
            groups.setdefault((each.model, each.item.task, each.ratio), []).append(each.recovered)
        for (model, task, ratio), values in groups.items():
            mean = sum(values) / len(values)
            yield Score(stage, model, task, self._settings.budgets[ratio].label, mean, len(values))

    # Around the sandboxes.

    def _known(self, item: ArenaItem) -> str:
        """The item's name, once all sandboxes have it."""
        name = f"{item.shared.files[0]}"
        if name not in self._loaded:
            for sandbox in self._sandboxes:
                sandbox.load(name, item.shared)
            self._loaded.add(name)
        return name

    def _apart(self, runs: Sequence[_Run], work: Work) -> Iterator[tuple[_Run, Verdict]]:
        """Each run's verdict, in order, the sandboxes sharing the work."""
        yield from zip(runs, shared_out(self._sandboxes, runs, work), strict=True)

    def _reject(self, population: Population, run: _Run, outcome: Outcome) -> Candidate:
        run.failed = True
        population.record(run.candidate.number, outcome)
        return population.candidate(run.candidate.number)


def _refused(verdict: Verdict, stage: str) -> Outcome:
    """A sandbox's verdict as an outcome."""
    return Outcome(_STATES.get(verdict.state, "rejected"), verdict.reason, stage, seconds=verdict.seconds)
