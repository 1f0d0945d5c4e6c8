"""The search: ask a proposer for a batch, evaluate it, tell the proposer, until the budget is spent.

What has been proposed and found is in the run's folder at every moment: a search that was stopped goes on from there,
and proposes what it would have proposed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.selections import Subject
from cachecraft.evolution.arena import Arena, Scale, eligible
from cachecraft.evolution.cascade import Cascade
from cachecraft.evolution.fitness import correlation
from cachecraft.evolution.llm.calls import Calls, Totals
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.mutate import mutations, seed_proposals, start_proposals
from cachecraft.evolution.proposers.protocol import Conduct, Proposer
from cachecraft.evolution.records import Candidate, PopulationSettings
from cachecraft.evolution.remedies import Diagnosis, Remedies
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.sandbox import Limits, Sandbox
from cachecraft.tasks.registry import load_tasks


@dataclass(frozen=True)
class SearchProgress:
    """Told whenever a candidate's outcome is known and whenever a model was asked.

    Attributes:
        phase: What is going on: ``"recording"``, ``"asking"``, ``"searching"``.
        counts: Candidates by state, all generations.
        latest: The candidate, or None while nothing was evaluated.
        best: The best candidate of closed generations.
        baseline: The best built-in policy's name and fitness, once known.
        share: Of the budget that is spent, from 0 to 1.
        seconds: Since this call began, and what remains if all goes on like this; None while unknown.
        correlations: Rank correlation of the error with quick, and of quick with full; None while unknown.
        calls: What asking language models came to; None where none is asked.
        diagnoses: What was diagnosed, and done about it.
    """

    phase: str
    counts: dict[str, int]
    latest: Candidate | None
    best: Candidate | None
    baseline: tuple[str, float] | None
    share: float
    seconds: tuple[float, float | None]
    correlations: tuple[float | None, float | None]
    calls: Totals | None = None
    diagnoses: tuple[Diagnosis, ...] = ()


@dataclass(frozen=True)
class _Clock:
    """How much of the budget is spent."""

    budget: SearchBudget
    began: float
    before: float  # seconds spent by earlier calls
    calls: Calls | None

    def share(self, population: Population) -> float:
        if self.budget.money is not None:
            spent = self.calls.totals().money if self.calls is not None else None
            return min(1.0, (spent or 0.0) / self.budget.money)
        if self.budget.candidates is not None:
            return min(1.0, len(population.told()) / self.budget.candidates)
        assert self.budget.seconds is not None
        return min(1.0, (self.before + time.monotonic() - self.began) / self.budget.seconds)


def search(
    subjects: Sequence[Subject],
    settings: DiscoverySettings,
    budget: SearchBudget,
    folder: Path,
    *,
    proposer: Proposer | None = None,
    make: Callable[[Conduct], Proposer] = mutations,
    calls: Calls | None = None,
    diagnosis: bool = True,
    workers: int = 1,
    progress: Callable[[SearchProgress], None] = lambda _: None,
) -> Population:
    """Search for policies; what the folder holds already is not searched again.

    Args:
        subjects: The models; fitness is the mean over them.
        settings: What to search for and on what.
        budget: When to end.
        folder: The run's folder.
        proposer: Where programs come from, whatever is diagnosed.
        make: Makes the proposer for a conduct where none is given; by default mutations of programs.
        calls: The calls of language models, if any are asked: what they came to, and when another one is over.
        diagnosis: Whether plateaus and hacks are named and acted upon.
        workers: Processes that run candidates at a time; the result does not depend on it.
        progress: Called as candidates are evaluated and models are asked.

    Returns:
        The population, open.

    Raises:
        CacheCraftError: No task is eligible, or the folder belongs to another search.
    """
    began = time.monotonic()
    population = Population(folder, PopulationSettings(settings.seed, settings.islands))
    clock = _Clock(budget, began, population.seconds, calls)
    if not population.is_open and clock.share(population) >= 1:
        return population  # nothing is left to do, so that no item need be recorded
    start = Conduct(settings.interface, settings.again)
    remedies = Remedies(folder, start) if diagnosis else None
    conduct: Conduct | None = None

    def report(phase: str, latest: Candidate | None = None) -> None:
        share = clock.share(population)
        spent = time.monotonic() - began
        left = spent * (1 - share) / share if latest is not None and share > 0 else None
        found = correlation(population, "error", "quick"), correlation(population, "quick", "full")
        best, line = population.best, baseline(population)
        done = tuple(remedies.all()) if remedies else ()
        times = (spent, left)
        totals = None if calls is None else calls.totals()
        progress(SearchProgress(phase, population.counts(), latest, best, line, share, times, found, totals, done))

    if calls is not None:
        calls.heard = lambda: report("asking")
    with ExitStack() as stack:
        report("recording")
        arenas = _arenas(subjects, settings, folder)
        scale = Scale.of(arenas, settings.items)
        limits = Limits(seconds=settings.seconds)
        boxes = [stack.enter_context(Sandbox(limits)) for _ in range(workers)]
        cascade = Cascade(arenas, scale, settings, boxes)
        if remedies:
            stack.callback(remedies.close)
        while population.is_open or clock.share(population) < 1:
            if remedies and not population.is_open:
                remedies.review(population)
            now = remedies.conduct if remedies else start
            if conduct != now:
                conduct, breeder = now, proposer or make(now)
                for candidate in population.told():
                    breeder.tell(candidate)
            cascade.open = not conduct.gate
            if not population.is_open:
                report("asking")
                if not _ask(population, breeder, settings, budget, conduct):
                    break
            for candidate in cascade.evaluate(population):
                report("searching", candidate)
            population.spend(time.monotonic() - clock.began + clock.before)
            for candidate in population.close():
                breeder.tell(candidate)
    return population


def _arenas(subjects: Sequence[Subject], settings: DiscoverySettings, folder: Path) -> list[Arena]:
    """An arena for each model, on the tasks that are eligible for all of them."""
    tasks = load_tasks(settings.tasks)
    arenas = [
        Arena(subject, tasks, settings, folder / "traces" / f"{number}") for number, subject in enumerate(subjects)
    ]
    common = [eligible(arena, settings.validation) for arena in arenas]
    shared = [task.name for task in tasks if all(task.name in names for names in common)]
    if not shared:
        pairs = zip(arenas, common, strict=True)
        told = "; ".join(f"{arena.subject.name}: {', '.join(names)}" for arena, names in pairs)
        raise CacheCraftError(f"No task can tell policies apart on all models at once ({told}); search on one model.")
    for arena in arenas:
        arena.keep_tasks(shared)
    return arenas


def _ask(
    population: Population, proposer: Proposer, settings: DiscoverySettings, budget: SearchBudget, conduct: Conduct
) -> bool:
    """Begin a generation; False where nothing is left to propose."""
    count = settings.batch
    if budget.candidates is not None:
        count = min(count, budget.candidates - len(population.told()))
    known = len(population.told())
    start = start_proposals(settings.start)
    seeds = start or seed_proposals(settings.interface, settings.seed, settings.without)
    proposals = seeds[known : known + count] if known < len(seeds) else proposer.ask(population, count)
    if not proposals:
        return False
    again = []
    if population.best is not None and known >= len(seeds):
        due = population.archive.due(conduct.again, settings.most)
        again = [each.number for each in due]
    population.begin(proposals, conduct.interface, again)
    return True


def baseline(population: Population) -> tuple[str, float] | None:
    """Name and fitness of the best seed that is a built-in policy."""
    known = [
        (each.proposal.note.removeprefix("Built-in policy "), each.fitness.mean)
        for each in population.told()
        if each.fitness is not None and each.proposal.note.startswith("Built-in policy ")
    ]
    return max(known, key=lambda pair: pair[1], default=None)


def leaders(population: Population, count: int) -> Iterator[Candidate]:
    """The best candidates by standing, those that were scored on all items first."""
    ranked = sorted(
        (each for each in population.told() if each.number in population.archive.standing),
        key=lambda each: (-population.archive.standing[each.number], each.number),
    )
    yield from ranked[:count]
