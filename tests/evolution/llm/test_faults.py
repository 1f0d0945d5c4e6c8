"""What a search makes of a model's faults: empty slots, refused replies that are told and diagnosed, silent models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.evolution.llm.runs import INTERFACE, PARENT, measured, run, search, seeded, worth

from cachecraft.evolution.diagnosis import Thresholds, diagnose
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.llm.calls import Calls, Reply
from cachecraft.evolution.llm.endpoint import Request, TransientError
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, Price, RefusedCallError
from cachecraft.evolution.llm.transport import Transport
from cachecraft.evolution.population import Population
from cachecraft.evolution.prompts import load_prompts
from cachecraft.evolution.proposers.llm import LlmProposer
from cachecraft.evolution.proposers.mix import MixProposer
from cachecraft.evolution.proposers.mutate import MutateProposer
from cachecraft.evolution.proposers.protocol import Conduct
from cachecraft.evolution.records import PopulationSettings, Proposal
from cachecraft.evolution.remedies import Remedies

CHEAT = "```python\ndef score_tokens(f):\n    return open(f.keys)\n```"
LIMITS = Thresholds(window=6)


class Model:
    """Answers by a script: a text, or an error to raise; a program of its own where there is nothing."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.script: dict[int, str | Exception] = {}  # by turn
        self.silent: set[str] = set()

    def send(self, request: Request, seconds: float) -> Reply:
        self.asked.append(request)
        act = self.script.get(len(request.messages) // 2 - 1)
        if request.model in self.silent:
            raise TransientError("status 503")
        if isinstance(act, Exception):
            raise act
        own = f"```python\ndef score_tokens(f):\n    return f.values.norm(dim=-1) * {request.seed}\n```"
        return Reply(own if act is None else act, tokens_in=100, tokens_out=20)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def population(tmp_path: Path) -> Iterator[Population]:
    with seeded(tmp_path) as found:
        yield found


def transport(model: Model, folder: Path, **changes: Any) -> Transport:
    given: dict[str, Any] = {"models": ("m", "n"), "deadline": 0.5, "reply_tokens": 50}
    settings = LlmSettings("http://host/v1", **(given | changes))
    return Transport(settings, Calls(folder), model, sleep=lambda _: None)


def proposer(through: Transport, name: str = "m", conduct: Conduct | None = None) -> LlmProposer:
    return LlmProposer(name, conduct or Conduct(INTERFACE), through, load_prompts())


def test_a_repair_that_the_endpoint_refuses_leaves_the_slot_empty(
    population: Population, tmp_path: Path, model: Model
) -> None:
    model.script = {0: "Hm.", 1: RefusedCallError("longer than the context")}
    found = proposer(transport(model, tmp_path))
    assert found.propose(population, 0, set()) is None
    assert len(model.asked) == 2
    model.script = {0: RefusedCallError("longer than the context")}
    with pytest.raises(RefusedCallError):
        found.propose(population, 1, set())


def test_an_empty_slot_moves_nobody_to_another_island(tmp_path: Path, model: Model) -> None:
    with Population(tmp_path, PopulationSettings(seed=3, islands=2)) as population:
        run(population, [Proposal(PARENT), Proposal(PARENT.replace("= f", "= 2 * f"))])
        model.script = {0: ""}
        found = proposer(transport(model, tmp_path))
        assert found.propose(population, 0, set()) is None
        model.script = {}
        batch = [found.propose(population, slot, set()) for slot in (1, 2)]
        told = run(population, [each for each in batch if each is not None])
        assert [(each.slot, each.island) for each in told] == [(1, 1), (2, 0)]
        batch = MutateProposer(INTERFACE).ask(population, 3)
        assert [each.slot for each in batch] == [0, 1, 2]


def refusals(population: Population, tmp_path: Path, model: Model, count: int = 3) -> LlmProposer:
    """A generation in which a model cheats `count` times, twice each, beside programs that rise."""
    model.script = {0: CHEAT, 1: CHEAT}
    found = proposer(transport(model, tmp_path))
    for slot in range(count):
        assert found.propose(population, slot, set()) is None
    children = [PARENT.replace("= f.keys", f"= f.values + {number} * f.keys") for number in range(6)]
    rising = [Proposal(each, (1,), "x", "", "mutate") for each in children]
    run(population, rising, lambda each: measured(0.9 + each.number / 1000))
    return found


def test_what_a_model_is_refused_is_diagnosed_acted_upon_and_told_to_it(
    population: Population, tmp_path: Path, model: Model
) -> None:
    found = refusals(population, tmp_path, model)
    refused = found._transport.calls.refused(population.generation)
    assert [(each.generation, each.model, each.fault) for each in refused] == [(1, "m", "not allowed")] * 3
    (seen,) = diagnose(population, LIMITS, refused=refused)
    assert (seen.kind, seen.what) == ("reward hack", "reaches outside")
    assert "3 of the last 6 candidates and 3 refused replies" in seen.evidence and "a reply of m" in seen.evidence
    (done,) = Remedies(tmp_path, Conduct(INTERFACE), LIMITS).review(population)
    assert done.change == {"warnings": ["Programs that cheat: reaches outside."]}
    model.script = {}
    found.propose(population, 0, set())
    told = model.asked[-1].messages[1]["content"]
    assert told.count("A program refused as not allowed: ") == 1 and "uses the name open" in told


def test_what_is_refused_counts_once_its_generation_is_closed(
    population: Population, tmp_path: Path, model: Model
) -> None:
    model.script = {0: CHEAT, 1: CHEAT}
    found = proposer(transport(model, tmp_path))
    for slot in range(3):
        found.propose(population, slot, set())
    prompts = {asked.messages[1]["content"] for asked in model.asked}
    assert not any("refused as" in prompt for prompt in prompts)
    assert found._transport.calls.refused(population.generation) == []


def test_a_model_that_repeats_itself_is_a_collapse(population: Population, tmp_path: Path, model: Model) -> None:
    found = refusals(population, tmp_path, model, count=0)
    refused = replace(next(iter(_refused(found, population, model))), generation=1)
    assert [each.kind for each in diagnose(population, LIMITS, refused=[refused] * 6)] == ["collapse"]
    assert diagnose(population, LIMITS, refused=[refused] * 5) == []


def _refused(found: LlmProposer, population: Population, model: Model) -> Iterator[Any]:
    known = population.candidates[2].source.replace("length = f.values", "length = f.values")
    model.script = {0: f"```python\n{known}```", 1: f"```python\n{known}```"}
    found.propose(population, 0, set())
    yield from found._transport.calls.refused(population.generation + 1)


def test_a_model_that_tunes_numbers_is_asked_for_more(population: Population, tmp_path: Path, model: Model) -> None:
    model.script = {0: "```python\n" + PARENT.replace("dim=-1", "dim=-2") + "```"}
    found = proposer(transport(model, tmp_path), conduct=Conduct(INTERFACE, structure=True))
    proposal = found.propose(population, 0, set())
    assert proposal is not None and proposal.operator == "functions, mended"
    assert found._transport.totals.outcomes == {"numbers only": 1, "used": 1}
    other = proposer(found._transport, "n", Conduct(Interface("constants"), structure=True))
    assert other.propose(population, 0, set()) is not None


def test_an_error_counts_the_replies_of_its_own_tries(population: Population, tmp_path: Path, model: Model) -> None:
    model.script = {0: "Hm.", 1: "Hm."}
    for _ in range(2):
        with pytest.raises(EndpointError, match=r"in 6 tries \(replies: 12 no edit\).*another run with --run"):
            proposer(transport(model, tmp_path)).ask(population, 2)


def test_the_mix_turns_away_from_a_model_that_never_answers(
    population: Population, tmp_path: Path, model: Model
) -> None:
    model.silent = {"n"}
    through = transport(model, tmp_path, deadline=0.01)
    mixed = MixProposer([proposer(through), proposer(through, "n")], through, MutateProposer(INTERFACE))
    search(population, mixed, 8, count=3)
    bandit, _ = mixed._learnt(population)
    tried = {each.slot for each in through.calls.asked() if each.model == "n"}
    assert tried and bandit._counts["llm n"][1] > 0.9
    assert bandit.rates()["llm n"] < 0.5


def test_a_mix_of_models_goes_on_with_those_that_answer(population: Population, tmp_path: Path, model: Model) -> None:
    through = transport(model, tmp_path)
    silent, speaking = proposer(through), proposer(through, "n")
    silent.ask = lambda population, count: []  # type: ignore[method-assign]
    assert MixProposer([silent, speaking], through)._alone(population, 2)


def test_where_the_money_is_used_up_nothing_more_is_proposed(
    population: Population, tmp_path: Path, model: Model
) -> None:
    through = transport(model, tmp_path, models=("m",), prices=(Price(0.0, 1.0),), most_money=1e-4)
    mixed = MixProposer([proposer(through)], through, MutateProposer(INTERFACE))
    for _ in range(40):
        batch = mixed.ask(population, 2)
        if through.limited:
            break
        run(population, batch, lambda each: measured(worth(each.source)))
    assert through.limited
    assert mixed.ask(population, 2) == []
