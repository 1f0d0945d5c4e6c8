"""The search on a tiny random model: complete, resumable, the same for any number of workers, unimpressed by cheats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import build_tokenizer
from tests.families import model_of

from cachecraft.discovery import starting_from
from cachecraft.errors import BudgetError, CacheCraftError, PolicyLoadError
from cachecraft.evaluation.selections import Subject
from cachecraft.evolution import arena, fitness, loop
from cachecraft.evolution.fitness import correlation, much_worse
from cachecraft.evolution.loop import SearchProgress, search
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.mutate import seed_proposals
from cachecraft.evolution.records import Candidate, Fitness, Proposal
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget, parse_budget
from cachecraft.runtime.structure import ModelStructure
from cachecraft.sandbox import Limits, Program, Sandbox

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("brief_answers")]
CANDIDATES = 6


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(ModelStructure.of(model_of("llama")), build_tokenizer(), "tiny", "r0", "float32")


@pytest.fixture(scope="module")
def lend() -> Iterator[Callable[[Limits], AbstractContextManager[Sandbox]]]:
    """Gives searches the same sandboxes, emptied in between: starting one takes longer than a search does."""
    free = [Sandbox(), Sandbox()]

    @contextmanager
    def lent(limits: Limits) -> Iterator[Sandbox]:
        box = free.pop()
        box.limits = limits
        box.start()
        try:
            yield box
        finally:
            for name in list(box._items):
                box.unload(name)
            free.append(box)

    yield lent
    for box in free:
        box.close()


@pytest.fixture(scope="module", autouse=True)
def easy(lend: Callable[[Limits], AbstractContextManager[Sandbox]]) -> Iterator[None]:
    """A random model can do no task, and most seeds are left out to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Sandbox", lend)
        patch.setattr(arena, "ELIGIBLE", -1.0)
        patch.setattr(loop, "seed_proposals", lambda *given: seed_proposals(*given)[:3])
        yield


def settings(**changes: Any) -> DiscoverySettings:
    given: dict[str, Any] = {
        "tasks": ("ruler:niah_single_1",),
        "ratios": (0.5, 0.75),
        "length": 330,
        "items": 2,
        "batch": 3,
        "again": 1,
        "validation": 1,
    }
    return DiscoverySettings(**(given | changes))


def story(population: Population) -> list[tuple[object, ...]]:
    """What may not depend on workers, interruptions or time."""
    return [
        (each.number, each.source, each.state, each.reason, each.stage, each.fitness, each.proposal.parents)
        for each in population.told()
    ]


def found(subject: Subject, folder: Path, **changes: Any) -> list[tuple[object, ...]]:
    with search([subject], settings(), SearchBudget(candidates=CANDIDATES), folder, **changes) as population:
        return story(population)


@pytest.fixture(scope="module")
def reference(
    brief_answers: None, easy: None, subject: Subject, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[object, ...]]:
    return found(subject, tmp_path_factory.mktemp("reference") / "run")


def test_a_search_ends_at_its_budget_and_breeds_from_its_seeds(reference: list[tuple[object, ...]]) -> None:
    assert len(reference) == CANDIDATES
    assert [parents for *_, parents in reference[:3]] == [()] * 3
    assert any(parents for *_, parents in reference[3:])
    assert sum(state == "ok" for _, _, state, *_ in reference) >= 4


def test_a_search_interrupted_again_and_again_with_any_number_of_workers_is_the_one_that_was_not(
    subject: Subject, tmp_path: Path, reference: list[tuple[object, ...]]
) -> None:
    seen = 0

    def stop(progress: SearchProgress) -> None:
        nonlocal seen
        seen += progress.latest is not None
        if progress.latest is not None and seen in (1, 4):  # among the seeds, and among what they bred
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            found(subject, tmp_path / "run", progress=stop)
    assert found(subject, tmp_path / "run", workers=2) == reference


class Fixed:
    """Proposes given programs."""

    name = "fixed"

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = list(sources)

    def ask(self, population: Population, count: int) -> list[Proposal]:
        taken, self._sources = self._sources[:count], self._sources[count:]
        return [Proposal(source, (), "given", "", self.name) for source in taken]

    def tell(self, candidate: Candidate) -> None:
        pass


def test_cheats_are_rejected_with_a_reason_each_and_the_search_goes_on(
    subject: Subject, tmp_path: Path, canary: Callable[[str], Program]
) -> None:
    cheats = ["keeps_everything", "returns_lists", "reads_files", "writes_keys", "remembers", "slow"]
    sources = [canary(name).source for name in cheats]
    budget = SearchBudget(candidates=20)
    given = settings(seconds=2.0)
    with search([subject], given, budget, tmp_path / "run", proposer=Fixed(sources)) as population:
        told = {each.number: each for each in population.told()}
    assert len(told) == 3 + len(cheats)
    for name, number in zip(cheats, range(4, 4 + len(cheats)), strict=True):
        assert told[number].state in ("rejected", "timeout", "crashed"), name
        assert told[number].reason
        assert told[number].fitness is None
    assert len({told[number].reason for number in range(4, 4 + len(cheats))}) == len(cheats)
    assert told[9].state == "timeout"


def test_the_same_choices_in_other_words_are_recognised_before_they_cost_anything(
    subject: Subject, tmp_path: Path
) -> None:
    sources = [
        "def score_tokens(f):\n    norms = f.keys.norm(dim=-1)\n    return -norms\n",
        "def score_tokens(f):\n    lengths = f.keys.norm(dim=-1)\n    return -lengths\n",  # the same program
        "def score_tokens(f):\n    return -3.0 * f.keys.norm(dim=-1)\n",  # the same choices
    ]
    with search([subject], settings(), SearchBudget(candidates=9), tmp_path, proposer=Fixed(sources)) as population:
        told = population.told()[-3:]
        assert [each.stage for each in told[1:]] == ["program", "behaviour"]
        assert all(not population.scores(each.number) for each in told[1:])


def test_a_search_begins_with_the_programs_that_it_is_given(subject: Subject, tmp_path: Path) -> None:
    given = starting_from(["keydiff", "vnorm"], settings())
    with search([subject], given, SearchBudget(candidates=3), tmp_path / "run") as population:
        notes = [each.proposal.note for each in population.told()]
    assert notes[:2] == ["Built-in policy keydiff", "Built-in policy vnorm"]
    assert population.candidates[3].proposal.parents


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def score_tokens(f):\n    return f.keys[..., 0] / 0", "not finite"),
        ("import os\ndef score_tokens(f):\n    return f.keys[..., 0]", "may not run"),
    ],
)
def test_a_search_does_not_begin_with_a_program_that_breaks_the_contract(
    text: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(PolicyLoadError, match=complaint):
        starting_from([str(path)], settings())


def test_a_finished_search_records_nothing_again(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = SearchBudget(candidates=2)
    search([subject], settings(), budget, tmp_path / "run").close_database()
    monkeypatch.setattr(loop, "Arena", None)  # what records items
    with search([subject], settings(), budget, tmp_path / "run") as population:
        assert len(population.told()) == 2


def test_tasks_that_cannot_tell_policies_apart_are_refused_by_name(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "ELIGIBLE", 0.2)
    with pytest.raises(CacheCraftError, match=r"niah_single_1 -?0\.00"):
        search([subject], settings(), SearchBudget(candidates=3), tmp_path)


def test_a_stage_gates_only_once_it_is_known_to_predict_the_next(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitness, "KNOWN", 3)
    with search([subject], settings(), SearchBudget(candidates=6), tmp_path) as population:
        known = correlation(population, "quick", "full")
        assert known is not None
        assert -1 <= known <= 1
        stages = {each.number: each.stage for each in population.told() if each.state == "ok"}
    assert all(stages[number] == "full" for number in (1, 2, 3) if number in stages)  # nothing was known then


def test_fresh_items_that_are_far_worse_make_a_candidate_suspect() -> None:
    known = Fitness(0.9, 8, 0.1)
    assert much_worse(known, Fitness(0.1, 4, 0.1))
    assert not much_worse(known, Fitness(0.8, 4, 0.1))
    assert not much_worse(known, Fitness(0.4, 1, 0.5))  # one item may be hard


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("600", SearchBudget(candidates=600)),
        ("30m", SearchBudget(seconds=1800.0)),
        ("$5", SearchBudget(money=5.0)),
    ],
)
def test_a_budget_is_a_number_of_candidates_or_a_time(text: str, budget: SearchBudget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["0", "-3", "0m", "many", "", "m", "nanm", "$0", "$", "$nan"])
def test_a_budget_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BudgetError):
        parse_budget(text)
