"""What a search suffers from, named with the evidence: pure functions of the candidates of closed generations.

A plateau or a hack is read as a sign that the interface is wrong: too narrow for a better program, or wide enough for
a cheat. What is done about a finding is remedies.py's business; nothing is changed here.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from cachecraft.evolution.interface import only_numbers
from cachecraft.evolution.llm.faults import Fault
from cachecraft.evolution.llm.recorded import Refused
from cachecraft.evolution.population import Population
from cachecraft.evolution.records import Candidate

Kind = Literal["plateau", "collapse", "overfit", "stage gap", "reward hack", "constant tuning"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Names of Python's own that the gate refuses; any other name that is not defined is a plain mistake.
_PYTHONS = "|".join(name for name in dir(builtins) if name.isidentifier())
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
            r"asked the system|may import torch|nothing to open|printed or wrote more"
            rf"|uses the name ({_PYTHONS}), which is not defined here"
        ),
        "gives up on hard items": re.compile(r"uses raise|must give a result for every context"),
        "forges the harness": re.compile(r"which a policy may not use|handed over|ended itself|not found here"),
    }
)
_RAISED = re.compile(r"must give a result for every context")
_WORKED = ("quick", "full", "again")  # stages of a candidate that has kept the contract


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


@dataclass(frozen=True)
class Window:
    """What is looked back upon.

    Attributes:
        recent: The last candidates that are no seeds.
        refused: Replies of the same generations that became no candidates.
    """

    recent: Sequence[Candidate]
    refused: Sequence[Refused] = ()

    @property
    def asked(self) -> bool:
        """Whether a language model took part."""
        return bool(self.refused) or any(each.proposal.proposer.startswith("llm ") for each in self.recent)


def window(population: Population, size: int, refused: Sequence[Refused] = (), since: int = 0) -> Window:
    """The last `size` candidates, of generation `since` or later, and what was refused beside them."""
    told = [each for each in population.told() if each.proposal.proposer != "seed" and each.generation >= since]
    recent = told[-size:]
    return Window(recent, [each for each in refused if recent and each.generation >= recent[0].generation])


def diagnose(
    population: Population, limits: Thresholds, *, refused: Sequence[Refused] = (), since: int = 0
) -> list[Finding]:
    """What is seen in the last candidates.

    Args:
        population: With no generation open.
        limits: When something is called by its name.
        refused: Replies of closed generations that became no candidates.
        since: Only candidates and replies of this generation or later are looked at.

    Returns:
        At most one finding of each kind, and of each kind of hack; the most telling first.
    """
    seen = window(population, limits.window, refused, since)
    if not seen.recent:
        return []
    checks: Sequence[Callable[[Population, Sequence[Candidate], Thresholds], Finding | None]] = (
        _overfit,
        _stage_gap,
        _constant_tuning,
    )
    found = [check(population, seen.recent, limits) for check in checks]
    found += [_collapse(seen, limits), _plateau(population, seen.recent, limits)]
    return [*_reward_hacks(seen, limits), *(each for each in found if each is not None)]


def hack_of(reason: str, *, worked: bool = True) -> str:
    """Which hack a rejection speaks of; "" if of none.

    Args:
        reason: What the harness says.
        worked: Whether the program had kept the contract before: one that has not and raises is merely wrong.
    """
    told = reason if worked else _RAISED.sub("", reason)
    return next((name for name, pattern in HACKS.items() if pattern.search(told)), "")


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


def _collapse(seen: Window, limits: Thresholds) -> Finding | None:
    recent = seen.recent
    if not _full(recent, limits):
        return None
    known = sum(each.fault == Fault.KNOWN for each in seen.refused)
    twins = known + sum(each.stage in ("program", "behaviour") for each in recent)
    beside = f" and {known} refused replies" if known else ""
    cells = {each.behaviour.cell for each in recent if each.state == "ok" and each.behaviour}
    good = sum(each.state == "ok" for each in recent)
    if twins >= limits.twins * (len(recent) + known):
        said = f"{twins} of the last {len(recent)} candidates{beside} repeat an earlier program or keep what one kept."
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


def _reward_hacks(seen: Window, limits: Thresholds) -> list[Finding]:
    """One finding for each kind of hack, the most frequent first."""
    told: dict[str, list[str]] = {}
    for reply in seen.refused:
        told.setdefault(hack_of(reply.sentence, worked=False), []).append(f"a reply of {reply.model}: {reply.sentence}")
    for each in seen.recent:
        if each.state != "ok":
            kind = hack_of(each.reason, worked=each.stage in _WORKED)
            told.setdefault(kind, []).append(f"{each.name}: {each.reason}")
    told.pop("", None)
    heart = next(iter(HACKS))
    beside = f" and {len(seen.refused)} refused replies" if seen.refused else ""
    last = f"of the last {len(seen.recent)} candidates{beside}"
    found = []
    for what, said in sorted(told.items(), key=lambda pair: (pair[0] != heart, -len(pair[1]), pair[0])):
        # A program that is good only on what it knows passed every other check: one is enough.
        if len(said) >= limits.hacks or what == heart:
            found.append(Finding("reward hack", what, f"{len(said)} {last}: {what}; {said[-1][:200]}"))
    return found


def _constant_tuning(population: Population, recent: Sequence[Candidate], limits: Thresholds) -> Finding | None:
    if not _full(recent, limits) or recent[-1].interface.level == "constants":
        return None
    children = [each for each in recent if each.proposal.parents and each.stage != "program"]
    only = sum(_only_numbers(population, each) for each in children)
    if not children or only < limits.numbers * len(children):
        return None
    return Finding("constant tuning", "", f"{only} of the last {len(children)} children differ in numbers only.")


def _only_numbers(population: Population, child: Candidate) -> bool:
    return only_numbers(population.candidates[child.proposal.parents[0]].source, child.source)
