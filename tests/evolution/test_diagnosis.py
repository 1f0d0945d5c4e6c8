"""Diagnosis: each trouble is named with its evidence, acted upon once, and the action undone when it brings nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evolution.llm.runs import PARENT, measured, run, seeded

from cachecraft.evolution.diagnosis import Thresholds, diagnose, hack_of
from cachecraft.evolution.fitness import much_worse
from cachecraft.evolution.interface import Interface, only_numbers
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.mutate import mutations
from cachecraft.evolution.proposers.protocol import Conduct
from cachecraft.evolution.records import Candidate, Fitness, Outcome, Proposal, Score
from cachecraft.evolution.remedies import Remedies
from cachecraft.reporting.explain import explain_run

LIMITS = Thresholds(window=6)
SELECTOR = PARENT + "\n\ndef protect(f: Features) -> tuple[int, int]:\n    return {0}, 4\n"


@pytest.fixture
def population(tmp_path: Path) -> Iterator[Population]:
    with seeded(tmp_path) as found:
        yield found


def child(number: float, note: str = "") -> Proposal:
    source = PARENT.replace("    return length", f"    return length + {number} * f.values.norm(dim=-1)")
    return Proposal(source, (1,), "x", note, "mutate")


def kinds(population: Population, limits: Thresholds = LIMITS) -> list[str]:
    return [found.kind for found in diagnose(population, limits)]


def fill(population: Population, judge: Callable[[Candidate], Outcome], first: int = 1, count: int = 6) -> None:
    run(population, [child(number) for number in range(first, first + count)], judge)


def rejected(reason: str) -> Callable[[Candidate], Outcome]:
    return lambda _: Outcome("rejected", reason, "contract")


def test_a_search_that_rises_suffers_from_nothing(population: Population) -> None:
    fill(population, lambda each: measured(0.9 + each.number / 1000))
    assert kinds(population) == []


def test_nothing_is_named_before_enough_was_seen(population: Population) -> None:
    fill(population, lambda _: measured(0.0), count=5)
    assert kinds(population) == []


def test_a_plateau_is_named_with_its_numbers(population: Population) -> None:
    fill(population, lambda _: measured(0.0))
    (found,) = diagnose(population, LIMITS)
    assert found.kind == "plateau"
    assert "In the last 6 candidates the best rose by 0.0000" in found.evidence


def test_a_collapse_is_named(population: Population) -> None:
    run(population, [Proposal(PARENT, (1,), "x", "", "mutate")] * 6)
    assert kinds(population)[0] == "collapse"


def test_constant_tuning_is_named(population: Population) -> None:
    many = [PARENT.replace("= f.keys", f"= {number} * f.keys") for number in range(2, 9)]
    run(population, [Proposal(many[0], (1,), "x", "", "mutate")], lambda _: measured(0.9))
    tuned = [Proposal(each, (2,), "numbers", "", "mutate") for each in many[1:]]
    run(population, tuned, lambda each: measured(0.9 + each.number / 50))
    assert kinds(population) == ["constant tuning"]


def stages(quick: float, full: float, again: float | None = None) -> Outcome:
    values = {"quick": quick, "full": full}
    scores = tuple(Score(name, "m", "t", "75%", value, 4) for name, value in values.items())
    return Outcome("ok", "", "full", Fitness((quick + full) / 2, 8, 0.1), scores)


def test_a_stage_gap_is_named(population: Population) -> None:
    fill(population, lambda _: stages(0.3, 0.5), count=4)
    limits = Thresholds(window=8)
    fill(population, lambda each: stages(0.3 + each.number / 20, 0.4), first=20, count=8)
    assert "stage gap" in kinds(population, limits)


def test_overfitting_is_named_by_fresh_items(population: Population) -> None:
    fill(population, lambda each: stages(0.8, 0.8 + each.number / 1000))
    numbers = [each.number for each in population.told() if each.number > 1]
    population.begin([], Interface("scorer"), again=numbers)
    for number in numbers:
        scores = (Score("again", "m", "t", "75%", 0.5, 4),)
        population.record_again(number, Outcome("ok", "", "again", Fitness(0.5, 4, 0.1), scores))
    population.close()
    assert kinds(population)[0] == "overfit"


@pytest.mark.parametrize(
    ("reason", "hack"),
    [
        ("On fresh items it recovers 0.10 …: it may know places or keys by heart.", "knows places or keys by heart"),
        (
            "Policy x keeps 2 of 2 entries of kv head 0 on layer 0, but the budget is 1; keep exactly the budget of "
            "head.",
            "keeps another number than its budget",
        ),
        (
            "Policy x selected with a torch.int64 (2, 1) on layer 0; return a bool mask of shape (2, 1).",
            "selects with indices",
        ),
        ("Policy x wrote into keys on layer 0, which are read-only; work on a copy.", "writes into what it is given"),
        ("Policy x gave another result after another sample; keep nothing between calls.", "keeps state between calls"),
        ("Policy x asked the system in line 5 to open or change a file; a policy may only compute.", "reaches outside"),
        ("Line 3 imports os; a policy may import torch, math and what cachecraft.policy offers.", "reaches outside"),
        ("Line 4 uses the name open, which is not defined here and not allowed.", "reaches outside"),
        ("Line 4 uses the name np, which is not defined here and not allowed.", ""),
        ("Policy x raised IndexError on layer 0; it must give a result for every context.", "gives up on hard items"),
        ("Policy x uses torch's global random state; pass generator=f.generator().", "draws by its own dice"),
        ("Policy x handed over an answer that cannot be read: it is cut off.", "forges the harness"),
        ("The same program as candidate 3.", ""),
    ],
)
def test_each_kind_of_hack_is_known_by_what_the_harness_says(reason: str, hack: str) -> None:
    assert hack_of(reason) == hack


def test_a_program_that_raises_gives_up_only_if_it_had_kept_the_contract(population: Population) -> None:
    reason = "Policy x raised TypeError on layer 0; it must give a result for every context."
    fill(population, lambda _: Outcome("rejected", reason, "contract"))
    assert "reward hack" not in kinds(population)
    fill(population, lambda _: Outcome("rejected", reason, "quick"), first=20)
    assert kinds(population)[0] == "reward hack"


def test_each_kind_of_hack_is_a_finding_and_is_reviewed_by_itself(population: Population, tmp_path: Path) -> None:
    writes = "Policy x wrote into keys on layer 0, which are read-only; work on a copy."
    keeps = "Policy x gave another result after another sample; keep nothing between calls."
    hacks = [replace(child(number), proposer="llm m") for number in range(12)]
    run(population, hacks[:6], lambda each: Outcome("rejected", writes if each.slot < 3 else keeps, "contract"))
    found = [each.what for each in diagnose(population, LIMITS) if each.kind == "reward hack"]
    assert found == ["keeps state between calls", "writes into what it is given"]
    remedies = Remedies(tmp_path, Conduct(Interface("scorer")), LIMITS)
    (first,) = remedies.review(population)
    assert first.what == found[0]
    run(population, hacks[6:9], lambda _: Outcome("rejected", writes, "contract"))
    (second,) = remedies.review(population)
    assert second.what == found[1]  # the first one's remedy does not stand in its way
    run(population, hacks[9:], lambda each: Outcome("rejected", keeps, "contract"))
    (reviewed,) = remedies.review(population)
    assert (reviewed.what, reviewed.verdict) == (found[0], "undone") and "still seen" in reviewed.result


def test_what_would_change_nothing_is_not_done(population: Population, tmp_path: Path) -> None:
    remedies = Remedies(tmp_path, Conduct(Interface("scorer")), LIMITS)
    fill(population, rejected("Policy x wrote into keys on layer 0, which are read-only."), count=3)
    assert remedies.review(population) == []  # mutations cannot be told
    fill(population, lambda _: stages(0.3, 0.5), first=20, count=3)
    fill(population, lambda each: stages(0.3 + each.number / 20, 0.4), first=40, count=8)
    limits = Thresholds(window=8)
    assert "stage gap" in kinds(population, limits)
    wide = Remedies(tmp_path, Conduct(Interface("scorer")), limits)
    assert all(each.kind != "stage gap" for each in wide.review(population))  # nobody is stopped as it is


def test_a_stage_gap_opens_a_gate_that_stops_somebody(
    population: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachecraft.evolution.remedies.predicts", lambda _: True)
    fill(population, lambda _: stages(0.3, 0.5), count=4)
    fill(population, lambda each: stages(0.3 + each.number / 20, 0.4), first=20, count=8)
    (done,) = Remedies(tmp_path, Conduct(Interface("scorer")), Thresholds(window=8)).review(population)
    assert done.change == {"gate": False}


def test_a_planted_plateau_widens_the_interface_and_that_is_undone_when_it_brings_nothing(
    population: Population, tmp_path: Path
) -> None:
    remedies = Remedies(tmp_path, Conduct(Interface("constants")), LIMITS)
    fill(population, lambda _: measured(0.0))
    (done,) = remedies.review(population)
    assert (done.kind, done.change) == ("plateau", {"level": "scorer"})
    assert remedies.conduct.interface.level == "scorer"
    assert remedies.review(population) == []  # a batch is looked at once
    fill(population, lambda _: measured(0.0), first=10)
    (undone,) = remedies.review(population)
    assert undone.verdict == "undone" and "no gain beyond noise" in undone.result
    assert remedies.conduct.interface.level == "constants"
    fill(population, lambda _: measured(0.0), first=20)
    (next_one,) = remedies.review(population)
    assert next_one.change == {"level": "scorer+selector"}  # what brought nothing is not tried again
    assert Remedies(tmp_path, Conduct(Interface("constants")), LIMITS).conduct == remedies.conduct
    story = "\n".join(explain_run(tmp_path))
    assert "opened the interface to scorer." in story and "undone, no gain beyond noise" in story


def test_a_search_whose_interface_is_too_narrow_finds_the_better_program_once_it_is_widened(
    population: Population, tmp_path: Path
) -> None:
    """Only programs that protect entries are good, and the interface allows them only after the diagnosis."""

    def judge(each: Candidate) -> Outcome:
        return measured(0.9 if "def protect" in each.source else 0.1)

    run(population, [Proposal(PARENT.replace("length", "norm"), (), "seed", "", "seed")], judge)
    remedies = Remedies(tmp_path, Conduct(Interface("scorer")), LIMITS)
    levels = []
    while len(levels) < 12 and (population.best is None or "def protect" not in population.best.source):
        remedies.review(population)
        conduct = remedies.conduct
        levels.append(conduct.interface.level)
        proposals = mutations(conduct).ask(population, 3)
        run(population, proposals, judge, conduct.interface)
    assert levels[0] == "scorer" and "scorer+selector" in levels
    best = population.best
    assert best is not None and "def protect" in best.source
    kept = [each for each in remedies.all() if each.change == {"level": "scorer+selector"}]
    assert kept and kept[0].verdict in ("in force", "kept")


def test_a_planted_hack_closes_the_hole(population: Population, tmp_path: Path) -> None:
    """A harness with a hole: whoever protects everything scores best until the count is looked at."""
    remedies = Remedies(tmp_path, Conduct(Interface("scorer+selector")), LIMITS)
    hacks = [Proposal(SELECTOR.format(number), (1,), "x", "Protects all", "llm m") for number in range(100, 104)]
    reason = "Policy x keeps 9 of 9 entries of kv head 0 on layer 0, but the budget is 1; keep exactly the budget."
    run(population, hacks, rejected(reason), Interface("scorer+selector"))
    (done,) = remedies.review(population)
    assert (done.kind, done.what) == ("reward hack", "keeps another number than its budget")
    assert "4 of the last 4 candidates" in done.evidence and "c0005" in done.evidence
    assert remedies.conduct.interface.level == "scorer"  # now the harness selects
    fill(population, lambda each: measured(0.9 + each.number / 1000))
    (kept,) = remedies.review(population)
    assert kept.verdict == "kept" and remedies.conduct.interface.level == "scorer"
    fill(population, lambda _: measured(0.0), first=20)
    (plateau,) = remedies.review(population)
    assert (plateau.kind, plateau.change) == ("plateau", {"level": "allocation"})  # the hole stays closed


def test_a_hole_in_the_harness_is_found_by_fresh_items_and_guarded(population: Population, tmp_path: Path) -> None:
    """A harness that hands out the same needle again and again: who keeps place 137 leads, until an item is fresh."""
    remedies = Remedies(tmp_path, Conduct(Interface("scorer"), again=2), LIMITS)
    hack = Proposal(PARENT.replace("= f.keys", "= -137 * f.keys"), (1,), "x", "", "llm m")
    run(population, [hack, child(1)], lambda each: measured(0.99 if "137" in each.source else 0.5))
    leader = population.best
    assert leader is not None and leader.fitness is not None and "137" in leader.source
    fresh = Fitness(0.05, 4, 0.1)
    assert much_worse(leader.fitness, fresh)
    population.begin([], Interface("scorer"), again=[leader.number])
    reason = (
        "On fresh items it recovers 0.05 after 0.99 on the items of its search: it may know places or keys by heart."
    )
    population.record_again(leader.number, Outcome("suspect", reason, "again"))
    population.close()
    assert population.best is not None and "137" not in population.best.source
    (done,) = remedies.review(population)  # one such program is enough
    assert (done.kind, done.what) == ("reward hack", "knows places or keys by heart")
    assert "guard" in done.action and remedies.conduct.again == 6
    assert remedies.conduct.warnings == ("Programs that cheat: knows places or keys by heart.",)


def test_actions_reach_the_mutations(population: Population) -> None:
    tuned = mutations(Conduct(Interface("scorer"), structure=True, evenly=True))
    assert "numbers" not in tuned.rates()
    free = mutations(Conduct(Interface("scorer")))
    for _ in range(3):  # weights and signs are numbers too, whichever operator changes them
        run(population, free.ask(population, 4))
    children = [each for _ in range(4) for each in run(population, tuned.ask(population, 6))]
    sources = {each.number: each.source for each in population.told()}
    made = [each for each in children if each.proposal.parents]
    assert made and not any(only_numbers(sources[each.proposal.parents[0]], each.source) for each in made)
    assert "numbers" in mutations(Conduct(Interface("constants"), structure=True)).rates()
    assert tuned.ask(population, 2)
