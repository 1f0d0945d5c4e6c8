"""What the report says of a discovery: its progress, archive, makers, failures and cost; candidates are told elsewhere.

Fitness counts closed batches only, as in the search itself; a search that is going on is told as far as it has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from cachecraft.evolution import storage
from cachecraft.evolution.archive import Archive, build_archive
from cachecraft.evolution.behaviour import AGREEMENT_EDGES, COSTS, RECENCY_EDGES
from cachecraft.evolution.records import Candidate
from cachecraft.reporting.report.candidates import candidate_data
from cachecraft.reporting.report.charts import Point, search_chart
from cachecraft.reporting.report.runs import RunFolder

BUILT_IN = "Built-in policy "  # how the note of a seed begins that is one
STATES = {"seen": "waiting", "ok": "measured"}


@dataclass(frozen=True)
class Maker:
    """What came of a way of proposing."""

    proposer: str
    operator: str
    count: int
    measured: int
    better: int
    best: float | None


@dataclass(frozen=True)
class Failure:
    """Candidates that failed for one reason, numbers and names in it aside."""

    state: str
    stage: str
    reason: str
    candidates: tuple[int, ...]


@dataclass(frozen=True)
class Mark:
    """A diagnosis, its letter in the chart, and what was done about it."""

    letter: str
    after: int
    kind: str
    what: str
    evidence: str
    action: str
    verdict: str
    result: str


@dataclass(frozen=True)
class GridCell:
    """A cell of the archive: its best candidate over all islands and how many candidates fell into it."""

    number: int | None
    fitness: float | None
    shade: float
    count: int


@dataclass(frozen=True)
class DiscoverySection:
    """Everything that the report says of a discovery."""

    key: str
    facts: tuple[tuple[str, str], ...]
    unfinished: str
    chart: str
    rises: tuple[Point, ...]
    marks: tuple[Mark, ...]
    grid: dict[str, tuple[tuple[GridCell, ...], ...]]
    makers: tuple[Maker, ...]
    failures: tuple[Failure, ...]
    costs: tuple[tuple[str, str], ...]
    calls: tuple[tuple[Any, ...], ...]
    data: dict[str, Any]


def discovery_section(run: RunFolder, key: str) -> DiscoverySection | None:
    """Read a discovery, or None where the run holds none.

    Args:
        run: A run.
        key: Unlike that of any other section of the page.
    """
    last = run.rows("generations", "SELECT number, closed FROM generations ORDER BY number DESC LIMIT 1")
    if not last:
        if run.settings.get("command") != "discover":
            return None
        text = "Nothing was proposed yet: the search records its items first."
        return DiscoverySection(key, (), text, "", (), (), {}, (), (), (), (), {"candidates": []})
    generation = last[0][0] + last[0][1]
    candidates = storage.read_candidates(run.connection, before=generation)
    closed = {number: each for number, each in candidates.items() if each.generation < generation}
    archive = build_archive(closed.values(), run.rows("migrations", "SELECT candidate, island FROM migrations"))
    good = [each for each in closed.values() if each.state == "ok" and each.fitness is not None]
    points = [Point(each.number, each.fitness.mean) for each in good if each.fitness is not None]
    rises, marks, known = _rises(points), _marks(run), _known(good)
    places = [(each.after, each.letter) for each in marks]
    waiting = sum(each.state == "seen" for each in candidates.values())
    again = len(run.rows("rescorings", "SELECT 1 FROM rescorings WHERE generation = ? AND state = 'seen'", last[0][:1]))
    return DiscoverySection(
        key=key,
        facts=_facts(run, candidates, archive, known, generation),
        unfinished=_unfinished(run, generation, bool(last[0][1]), waiting, again),
        chart=search_chart(points, rises, places, known, name=key) if points else "",
        rises=rises,
        marks=marks,
        grid=_grid(archive, good),
        makers=_makers(closed.values()),
        failures=_failures(candidates.values()),
        costs=_costs(run, candidates),
        calls=_calls(run),
        data=candidate_data(run, candidates, archive),
    )


def _unfinished(run: RunFolder, generation: int, closed: bool, waiting: int, again: int) -> str:
    """Says how far a search is that has not come to its end, where it writes its policies; "" for one that has."""
    if closed and any(run.folder.glob("policies/*.py")):
        return ""
    if closed:
        batches = f"{generation} batches" if generation != 1 else "1 batch"
        return f"The search is going on, or was stopped after {batches}: it has written no policies yet."
    waits = [(waiting, "no outcome yet"), (again, "to be measured again")]
    told = [f"{count} candidate{' has' if count == 1 else 's have'} {what}" for count, what in waits if count]
    text = f"The search is going on, or was stopped in the middle of batch {generation + 1}"
    return f"{text}: {', and '.join(told)}." if told else f"{text}."


def _known(candidates: Iterable[Candidate]) -> tuple[str, float] | None:
    """Name and fitness of the best seed that is a built-in policy."""
    known = [
        (each.proposal.note.removeprefix(BUILT_IN), each.fitness.mean)
        for each in candidates
        if each.fitness is not None and each.proposal.note.startswith(BUILT_IN)
    ]
    return max(known, key=lambda pair: pair[1], default=None)


def _rises(points: Sequence[Point]) -> tuple[Point, ...]:
    rises: list[Point] = []
    for each in points:
        if not rises or each.fitness > rises[-1].fitness:
            rises.append(each)
    return tuple(rises)


def _facts(
    run: RunFolder,
    candidates: Mapping[int, Candidate],
    archive: Archive,
    known: tuple[str, float] | None,
    generation: int,
) -> tuple[tuple[str, str], ...]:
    counts: dict[str, int] = {}
    for each in candidates.values():
        counts[STATES.get(each.state, each.state)] = counts.get(STATES.get(each.state, each.state), 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda pair: -pair[1]))
    found = [("candidates", f"{len(candidates)} in {generation} batches: {told}")]
    best = archive.best
    if best is not None and best.fitness is not None:
        found.append(("best", f"{best.name}: {best.fitness.mean:.3f} over {best.fitness.items} items"))
    if known is not None:
        found.append(("best known policy", f"{known[0]}: {known[1]:.3f}"))
    own = run.settings
    tasks = ", ".join(str(task).removeprefix("ruler:") for task in own.get("tasks") or ())
    ratios = ", ".join(map(str, own.get("ratios") or ()))
    found.append(("searched on", f"{tasks}; {own.get('length', '?')} tokens, {ratios} evicted"))
    found.append(("models", ", ".join(map(str, own.get("models") or ()))))
    return tuple(found)


def _marks(run: RunFolder) -> tuple[Mark, ...]:
    rows = run.rows(
        "diagnoses",
        "SELECT candidate, kind, what, evidence, action, verdict, result FROM diagnoses ORDER BY number",
    )
    return tuple(Mark(_letter(place), *row) for place, row in enumerate(rows))


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else f"{place + 1}"


def _grid(archive: Archive, good: Sequence[Candidate]) -> dict[str, tuple[tuple[GridCell, ...], ...]]:
    """For each cost class the cells by heads' agreement (rows) and recency (columns)."""
    best: dict[int, Candidate] = {}
    for (_, place), elite in archive.elites.items():
        if place not in best or archive.standing[elite.number] > archive.standing[best[place].number]:
            best[place] = elite
    counts: dict[int, int] = {}
    for each in good:
        if each.behaviour is not None:
            counts[each.behaviour.cell] = counts.get(each.behaviour.cell, 0) + 1
    means = [each.fitness.mean for each in best.values() if each.fitness]
    low, high = max(min(means, default=0.0), 0.0), max(means, default=1.0)

    def drawn(recency: int, agreement: int, cost: int) -> GridCell:
        place = (recency * (len(AGREEMENT_EDGES) + 1) + agreement) * len(COSTS) + cost
        elite = best.get(place)
        if elite is None or elite.fitness is None:
            return GridCell(None, None, 0.0, counts.get(place, 0))
        shade = (elite.fitness.mean - low) / (high - low) if high > low else 1.0
        return GridCell(elite.number, elite.fitness.mean, min(1.0, max(0.0, shade)), counts.get(place, 0))

    return {
        cost: tuple(
            tuple(drawn(recency, agreement, place) for recency in range(len(RECENCY_EDGES) + 1))
            for agreement in range(len(AGREEMENT_EDGES) + 1)
        )
        for place, cost in enumerate(COSTS)
    }


def _makers(candidates: Iterable[Candidate]) -> tuple[Maker, ...]:
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for each in candidates:
        groups.setdefault((each.proposal.proposer, each.proposal.operator), []).append(each)
    found = []
    for (proposer, operator), own in groups.items():
        means = [each.fitness.mean for each in own if each.state == "ok" and each.fitness is not None]
        better = sum(each.gain is not None and each.gain > 0 for each in own)
        found.append(Maker(proposer, operator, len(own), len(means), better, max(means, default=None)))
    return tuple(sorted(found, key=lambda each: -each.count))


def _failures(candidates: Iterable[Candidate]) -> tuple[Failure, ...]:
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    for each in candidates:
        if each.state not in ("ok", "seen"):
            groups.setdefault((each.state, each.stage, _kind(each.reason)), []).append(each)
    found = [
        Failure(state, stage, own[0].reason, tuple(each.number for each in own))
        for (state, stage, _), own in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: -len(each.candidates)))


def _kind(reason: str) -> str:
    """A reason without what differs from candidate to candidate."""
    return re.sub(r"'[^']*'|\d+(\.\d+)?", "…", reason)


def _costs(run: RunFolder, candidates: Mapping[int, Candidate]) -> tuple[tuple[str, str], ...]:
    """Time, tokens and money, with how many proposals or calls are not in them because theirs is unknown."""
    told = run.rows("population", "SELECT value FROM population WHERE name = 'seconds'")
    spent = sum(row[0] for row in run.rows("candidates", "SELECT seconds FROM candidates"))
    money = [each.proposal.cost.money for each in candidates.values()]
    tokens = [(each.proposal.cost.tokens_in, each.proposal.cost.tokens_out) for each in candidates.values()]
    known = sum(part for part in money if part is not None)
    missing = sum(part is None for part in money)
    uncounted = run.rows("llm_calls", "SELECT COUNT(*) FROM llm_calls WHERE tokens_in IS NULL OR tokens_out IS NULL")
    untold = f", and unknown for {uncounted[0][0]} calls" if uncounted and uncounted[0][0] else ""
    return (
        ("time, all commands together", _duration(float(told[0][0])) if told else "not told yet"),
        ("time in evaluations of candidates", _duration(spent)),
        (
            "tokens to and from language models",
            f"{sum(a for a, _ in tokens):,} and {sum(b for _, b in tokens):,}{untold}",
        ),
        ("money", f"${known:.4f}" + (f", and unknown for {missing} candidates" if missing else "")),
    )


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _calls(run: RunFolder) -> tuple[tuple[Any, ...], ...]:
    """Calls to language models: model, outcome, how many, tokens in and out, money, seconds.

    A sum of which one part is unknown is unknown, None.
    """
    sums = ", ".join(
        f"CASE WHEN COUNT({name}) = COUNT(*) THEN SUM({name}) END" for name in ("tokens_in", "tokens_out", "money")
    )
    return tuple(
        run.rows(
            "llm_calls",
            "SELECT model, CASE outcome WHEN '' THEN state ELSE outcome END AS came, COUNT(*), "
            f"{sums}, SUM(seconds) FROM llm_calls GROUP BY model, came ORDER BY COUNT(*) DESC",
        )
    )
