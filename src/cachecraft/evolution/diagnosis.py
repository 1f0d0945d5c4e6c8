"""What a search suffers from, named with the evidence: pure functions of the candidates of closed generations.

A plateau or a hack is read as a sign that the interface is wrong: too narrow for a better program, or wide enough for
a cheat. What is done about a finding is remedies.py's business; nothing is changed here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from cachecraft.evolution.interface import Interface, check_edit
from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Candidate

Kind = Literal["plateau", "collapse", "overfit", "stage gap", "reward hack", "constant tuning"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Reward hacks by what the harness says when it rejects one; the first that fits names it.
HACKS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "knows places or keys by heart": re.compile(r"may know places or keys by heart"),
        "keeps another number than its budget": re.compile(r"keep exactly the budget|drops the protected entry"),
        "selects with indices": re.compile(r"return a bool mask"),
        "writes into what it is given": re.compile(r"writes? into|wrote into"),
        "keeps state between calls": re.compile(
            r"keep nothing between calls|could change|writes to a name outside|uses (global|nonlocal)"
        ),
        "draws by its own dice": re.compile(r"global random state|two results for one"),
        "reaches outside": re.compile(
            r"asked the system|may import torch|nothing to open|not defined here and not allowed|printed or wrote more"
        ),
        "gives up on hard items": re.compile(r"uses raise|must give a result for every context"),
        "forges the harness": re.compile(r"which a policy may not use|handed over|ended itself|not found here"),
    }
)


@dataclass(frozen=True)
class Thresholds:
    """When something is called by its name.

    Attributes:
        window: Candidates that are looked back upon; nothing is named before as many were proposed.
        noise: Standard errors by which the best must rise for a gain.
        twins: Share of the window that repeats earlier programs or behaviours: a collapse.
        numbers: Share of children that differ in numbers only: constant tuning.
        hacks: Candidates of one kind of hack in the window.
        worse: Standard errors by which fresh items are worse than those of the search: overfitting.
    """

    window: int = 40
    noise: float = 0.5
    twins: float = 0.5
    numbers: float = 0.7
    hacks: int = 3
    worse: float = 2.0


@dataclass(frozen=True)
class Finding:
    """Something that a search suffers from.

    Attributes:
        kind: Its name.
        what: Which of its kind, for example which hack; "" where there is one only.
        evidence: In one sentence, with numbers.
    """

    kind: Kind
    what: str
    evidence: str


def diagnose(population: Population, limits: Thresholds, *, since: int = 0) -> list[Finding]:
    """What is seen in the last candidates.

    Args:
        population: With no generation open.
        limits: When something is called by its name.
        since: Only candidates of this generation or later are looked at.

    Returns:
        At most one finding of each kind, the most telling first.
    """
    recent = [each for each in population.told() if each.proposal.proposer != "seed" and each.generation >= since]
    recent = recent[-limits.window :]
    checks: Sequence[Callable[[Population, Sequence[Candidate], Thresholds], Finding | None]] = (
        _reward_hack,
        _overfit,
        _stage_gap,
        _constant_tuning,
        _collapse,
        _plateau,
    )
    return [found for check in checks if recent and (found := check(population, recent, limits)) is not None]


def hack_of(reason: str) -> str:
    """Which hack a rejection speaks of; "" if of none."""
    return next((name for name, pattern in HACKS.items() if pattern.search(reason)), "")


def best_gain(population: Population, before: int) -> tuple[float, float]:
    """By how much the best standing rose with the candidates from number `before` on, and the best's standard error."""
    standing = population.archive.standing
    best = max(standing, key=lambda number: (standing[number], -number), default=None)
    if best is None:
        return 0.0, 0.0
    fitness = population.candidates[best].fitness
    assert fitness is not None
    earlier = max((value for number, value in standing.items() if number < before), default=-math.inf)
    return max(0.0, standing[best] - earlier), population.archive.spread / math.sqrt(fitness.items)


def _full(recent: Sequence[Candidate], limits: Thresholds) -> bool:
    return len(recent) >= limits.window


def _plateau(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    if not _full(recent, limits):
        return None
    gain, error = best_gain(population, recent[0].number)
    if gain > limits.noise * error:
        return None
    return Finding(
        "plateau",
        "",
        f"In the last {len(recent)} candidates the best rose by {gain:.4f}, no more than {limits.noise:g} of its "
        f"standard error of {error:.4f}.",
    )


def _collapse(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    if not _full(recent, limits):
        return None
    twins = sum(each.stage in ("program", "behaviour") for each in recent)
    cells = {each.behaviour.cell for each in recent if each.state == "ok" and each.behaviour}
    good = sum(each.state == "ok" for each in recent)
    if twins >= limits.twins * len(recent):
        said = f"{twins} of the last {len(recent)} candidates repeat an earlier program or keep what one kept."
    elif good >= len(recent) / 2 and len(cells) == 1:
        said = f"All {good} of the last {len(recent)} candidates that work fall into one cell of the archive."
    else:
        return None
    return Finding("collapse", "", said)


def _overfit(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    """Elites on the items that chose them, and on fresh ones: being chosen flatters, but not by this much."""
    first = recent[0].generation
    before, fresh, drops = 0.0, 0.0, []
    for number, stages in population.stage_means().items():
        chosen = [stages[name] for name in ("full", "quick") if name in stages]
        if "again" in stages and chosen and population.candidates[number].generation >= first:
            drops.append(chosen[0] - stages["again"])
            before, fresh = before + chosen[0], fresh + stages["again"]
    if len(drops) < 4:
        return None
    mean = sum(drops) / len(drops)
    error = math.sqrt(sum((drop - mean) ** 2 for drop in drops) / (len(drops) - 1) / len(drops))
    if mean <= max(limits.worse * error, 0.02):
        return None
    return Finding(
        "overfit",
        "",
        f"{len(drops)} elites recover {before / len(drops):.3f} on the items that chose them and "
        f"{fresh / len(drops):.3f} on fresh ones.",
    )


def _stage_gap(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    """The best on the quick items rises, the best on the other items does not."""
    if not _full(recent, limits):
        return None
    means = population.stage_means()
    both = {number: found for number, found in means.items() if "quick" in found and "full" in found}
    old = [found for number, found in both.items() if number < recent[0].number]
    new = [found for number, found in both.items() if number >= recent[0].number]
    if len(new) < 8 or not old:
        return None
    rises = {stage: max(f[stage] for f in new) - max(f[stage] for f in old) for stage in ("quick", "full")}
    error = population.archive.spread / math.sqrt(max(1, min(each for each in _items(population, both))))
    if rises["quick"] <= limits.noise * error or rises["full"] > 0:
        return None
    return Finding(
        "stage gap",
        "",
        f"In the last {len(recent)} candidates the best on the quick items rose by {rises['quick']:.3f}, the best on "
        f"the other items by {rises['full']:.3f}.",
    )


def _items(population: Population, numbers: Mapping[int, object]) -> Iterator[int]:
    for number in numbers:
        fitness = population.candidates[number].fitness
        yield fitness.items if fitness else 1


def _reward_hack(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    kinds = Counter(hack_of(each.reason) for each in recent if each.state != "ok")
    kinds.pop("", None)
    if not kinds:
        return None
    # A program that is good only on what it knows passed every other check: one is enough.
    heart = next(iter(HACKS))
    what, count = (heart, kinds[heart]) if kinds[heart] else kinds.most_common(1)[0]
    if count < limits.hacks and what != heart:
        return None
    some = next(each for each in reversed(recent) if each.state != "ok" and hack_of(each.reason) == what)
    told = f"{count} of the last {len(recent)} candidates: {what}"
    return Finding("reward hack", what, f"{told}; {some.name}: {some.reason[:160]}")


def _constant_tuning(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    if not _full(recent, limits) or recent[-1].interface.level == "constants":
        return None
    children = [each for each in recent if each.proposal.parents and each.stage != "program"]
    only = sum(_only_numbers(population, each) for each in children)
    if not children or only < limits.numbers * len(children):
        return None
    return Finding("constant tuning", "", f"{only} of the last {len(children)} children differ in numbers only.")


def _only_numbers(population: Population, child: Candidate) -> bool:
    parent = population.candidates[child.proposal.parents[0]]
    return not check_edit(parent.source, child.source, Interface("constants"))
