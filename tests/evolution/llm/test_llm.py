"""The proposer that asks a language model, alone and mixed with mutations, against a stand-in endpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from tests.evolution.llm.runs import INTERFACE, PARENT, run, search, seeded
from tests.evolution.llm.standin import Act, Script, StandIn, standing_in

from cachecraft.evolution.interface import Interface
from cachecraft.evolution.llm.calls import Calls, open_recorded
from cachecraft.evolution.llm.endpoint import OpenAiEndpoint
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, Price
from cachecraft.evolution.llm.transport import Transport
from cachecraft.evolution.population import Population
from cachecraft.evolution.prompts import PLACEHOLDERS, PromptError, load_prompts, write_prompts
from cachecraft.evolution.proposers.llm import LlmProposer
from cachecraft.evolution.proposers.mix import MixProposer
from cachecraft.evolution.proposers.mutate import MutateProposer
from cachecraft.evolution.proposers.protocol import Conduct
from cachecraft.evolution.records import Outcome, Proposal


def fenced(body: str) -> str:
    return f"Idea: other numbers.\n\n```python\ndef score_tokens(f):\n{body}\n```"


def numbered(request: dict[str, Any]) -> Act:
    """A program of its own for every prompt."""
    return Act(fenced(f"    return f.keys.norm(dim=-1) * {request['seed']}"))


@pytest.fixture
def population(tmp_path: Path) -> Iterator[Population]:
    with seeded(tmp_path) as found:
        yield found


def proposer(
    server: StandIn | None, folder: Path, replay: Calls | None = None, conduct: Conduct | None = None, **changes: Any
) -> LlmProposer:
    given: dict[str, Any] = {"base_url": server.url if server else "http://127.0.0.1:9/v1", "models": ("m",)}
    settings = LlmSettings(**({"deadline": 5.0} | given | changes))
    endpoint = OpenAiEndpoint(server.url, "k") if server else None
    transport = Transport(settings, Calls(folder), endpoint, replay=replay, sleep=lambda _: None)
    return LlmProposer("m", conduct or Conduct(INTERFACE), transport, load_prompts())


def outcomes(found: LlmProposer) -> dict[str, int]:
    return dict(found._transport.totals.outcomes)


def test_a_reply_becomes_a_proposal_that_says_what_it_is_and_cost(population: Population, tmp_path: Path) -> None:
    with standing_in(numbered) as server:
        found = proposer(server, tmp_path, prices=(Price(1.0, 10.0),))
        (proposal,) = found.ask(population, 1)
    assert proposal.parents == (1,) and proposal.proposer == "llm m" and proposal.operator == "functions"
    assert proposal.note == "other numbers."
    assert (proposal.cost.tokens_in, proposal.cost.tokens_out) == (100, 20)
    assert proposal.cost.money == pytest.approx(0.0003)
    assert outcomes(found) == {"used": 1}


def test_the_prompt_shows_interface_features_parent_scores_and_failures(population: Population, tmp_path: Path) -> None:
    children = [PARENT.replace("= f.keys", f"= {weight} * f.keys") for weight in (2, 3, 4)]
    run(population, [Proposal(each, (1,), "x", "Weighed otherwise", "mutate") for each in children[:2]])
    refused = Outcome("rejected", "It writes into keys.", "static")
    run(population, [Proposal(children[2], (1,), "x", "Wrote in place", "mutate")], lambda _: refused)
    with standing_in(numbered) as server:
        proposer(
            server, tmp_path, conduct=Conduct(Interface("scorer", frozenset({"keys"})), warnings=("It cheats.",))
        ).ask(population, 1)
        system, user = (each["content"] for each in server.asked[0]["messages"])
    assert "`score_tokens` with the helpers that only it uses" in system
    assert "`f.keys`: (G, T, D) after the rotation." in system and "f.values" not in system
    assert "It cheats." in system
    assert re.search(r"c000\d: 0\.\d{4} over 8 items \(ruler:vt at 75%: 0\.\d{4}; ruler:vt at 88%: 0\.\d{4}\)", user)
    assert "Wrote in place: It writes into keys." in user
    assert "length = " in user and "{{" not in system + user


def test_programs_are_left_out_of_a_prompt_that_would_be_too_long(population: Population, tmp_path: Path) -> None:
    run(population, [Proposal(PARENT.replace("= f", f"= {n} * f"), (1,), "x", "n", "mutate") for n in range(2, 9)])
    with standing_in(numbered) as server:
        proposer(server, tmp_path).propose(population, 0, set())
        proposer(server, tmp_path, prompt_characters=100).propose(population, 1, set())
    long, short = (asked["messages"][1]["content"] for asked in server.asked)
    assert "## " in long and "Better programs" not in short and "differently" not in short
    assert "The program to change" in short


BAD = {
    "empty": Act(""),
    "refusal": Act(None, refusal="No."),
    "cut off": Act(fenced("    return f.keys.norm(dim=-1) * 2"), finish="length"),
    "no edit": Act("Keys matter."),
    "unmatched SEARCH": Act("<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE"),
    "invalid Python": Act("<<<<<<< SEARCH\n    return length\n=======\n    return (length\n>>>>>>> REPLACE"),
    "not allowed": Act(fenced("    import os\n    return f.keys.norm(dim=-1)")),
    "edit outside the editable part": Act("```python\ndef protect(f):\n    return 4, 4\n```"),
    "unchanged": Act("<<<<<<< SEARCH\n    return length\n=======\n    return length  # long\n>>>>>>> REPLACE"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_reply_that_cannot_be_used_is_counted_by_its_fault_and_mended_once(
    population: Population, tmp_path: Path, kind: str
) -> None:
    def act(request: dict[str, Any]) -> Act:
        return BAD[kind] if len(request["messages"]) == 2 else numbered(request)

    with standing_in(act) as server:
        found = proposer(server, tmp_path)
        proposal = found.propose(population, 0, set())
    assert outcomes(found)[kind] == 1
    if kind in ("empty", "refusal"):
        assert proposal is None and len(server.asked) == 1
    else:
        assert proposal is not None and proposal.operator == "functions, mended"
        assert proposal.cost.tokens_in == 200
        assert server.asked[1]["messages"][3]["content"].startswith("This cannot be used: ")


def test_a_program_that_is_known_is_no_candidate(population: Population, tmp_path: Path) -> None:
    with standing_in([Act(fenced("    return 2 * f.keys.norm(dim=-1)"))]) as server:
        found = proposer(server, tmp_path)
        assert len(found.ask(population, 3)) == 1
    assert outcomes(found) == {"known program": 4, "used": 1}


def test_a_model_that_gives_nothing_usable_stops_the_run_with_a_sentence(
    population: Population, tmp_path: Path
) -> None:
    with standing_in([Act("Hello.")]) as server:
        with pytest.raises(EndpointError, match=r"no usable program in 6 tries .*12 no edit"):
            proposer(server, tmp_path).ask(population, 2)
        before = len(server.asked)
        with pytest.raises(EndpointError):  # the same command asks again, not for what was answered
            proposer(server, tmp_path).ask(population, 2)
    assert len(server.asked) == 2 * before


def test_an_unknown_model_ends_the_run_and_what_it_has_is_kept(population: Population, tmp_path: Path) -> None:
    gone = Act(status=404, text="model not found")
    with standing_in([gone]) as server, pytest.raises(EndpointError, match="there is no model 'm'"):
        proposer(server, tmp_path).ask(population, 2)
    assert len(server.asked) == 1 and not population.is_open
    assert [each.state for each in population.told()] == ["ok"]


def test_a_limit_that_is_reached_ends_the_batch(population: Population, tmp_path: Path) -> None:
    with standing_in(numbered) as server:
        found = proposer(server, tmp_path, most_tokens=8_500)
        assert 1 <= len(found.ask(population, 100)) < 100
        assert found.ask(population, 0) == []
    assert found._transport.calls.spent().tokens <= 8_500


Made = Callable[[Path, Calls | None], LlmProposer | MixProposer]


def story(folder: Path, made: Made, script: Script, stop: int | None = None, replay: Path | None = None) -> list[Any]:
    """A run of three generations; with `stop`, one that is ended while asking and gone on with."""
    recorded = open_recorded(replay) if replay else None
    with seeded(folder) as population:
        if stop is not None:
            search(population, made(folder, recorded), stop, count=2)
            made(folder, recorded).ask(population, 2)  # asked for, and killed before it was begun
            search(population, made(folder, recorded), 3 - stop, count=2)
        else:
            search(population, made(folder, recorded), 3, count=2)
        return [(each.proposal, each.fitness, each.gain) for each in population.told()]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_run_is_the_same_resumed_and_replayed_and_asks_for_nothing_twice(tmp_path: Path, mixed: bool) -> None:
    def act(request: dict[str, Any]) -> Act:
        return numbered(request) if request["seed"] % 3 else Act("Hm.")

    with standing_in(act) as server:

        def made(folder: Path, replay: Calls | None) -> LlmProposer | MixProposer:
            alone = proposer(None if replay else server, folder, replay)
            return MixProposer([alone], alone._transport, MutateProposer(INTERFACE)) if mixed else alone

        first = story(tmp_path / "a", made, act)
        asked = len(server.asked)
        assert story(tmp_path / "b", made, act, stop=1) == first
        assert len(server.asked) == 2 * asked
        assert story(tmp_path / "c", made, act, replay=tmp_path / "a") == first
        assert len(server.asked) == 2 * asked
    proposers = {proposal.proposer for proposal, *_ in first}
    assert proposers == ({"seed", "llm m", "mutate"} if mixed else {"seed", "llm m"})


def test_the_mix_turns_away_from_what_costs_much_and_brings_nothing(population: Population, tmp_path: Path) -> None:
    with standing_in([Act("Hm.", usage=(50_000, 10_000))]) as server:
        alone = proposer(server, tmp_path)
        mixed = MixProposer([alone], alone._transport, MutateProposer(INTERFACE))
        search(population, mixed, 12, count=2)
        bandit, costs = mixed._learnt(population)
    assert costs["llm m"] > 2 * costs["mutate"] == 2
    assert bandit.rates()["llm m"] < bandit.rates()["mutate"]
    asked = [each.generation for each in alone._transport.calls.asked()]
    assert sum(generation > 6 for generation in asked) <= 3
    assert len(population.told()) == 25  # the mutations took over the empty slots


def test_prompts_are_written_changed_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert sorted(path.stem for path in write_prompts(folder)) == sorted(PLACEHOLDERS)
    assert load_prompts(folder).digest == load_prompts().digest
    (folder / "repair.md").write_text("No: {{ problem }}")
    assert load_prompts(folder).filled("repair", problem="{{ x }}") == "No: {{ x }}\n"
    assert load_prompts(folder).digest != load_prompts().digest
    with pytest.raises(PromptError, match="was not overwritten"):
        write_prompts(folder)
    for text, said in (("No.", r"lacks \{\{ problem \}\}"), ("{{ problem }} {{ nothing }}", "which nothing fills")):
        (folder / "repair.md").write_text(text)
        with pytest.raises(PromptError, match=said):
            load_prompts(folder)
    with pytest.raises(PromptError, match="no folder"):
        load_prompts(tmp_path / "none")
