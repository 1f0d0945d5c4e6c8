"""A whole search with a language model in it, on a tiny random model; its replay; and what the command line refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from tests.conftest import build_tokenizer
from tests.evolution.llm.runs import seeded
from tests.evolution.llm.standin import Act, standing_in
from tests.families import model_of
from typer.testing import CliRunner

from cachecraft import cli, discovery
from cachecraft.cli import app
from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.store import open_run, read_run
from cachecraft.evolution import arena, loop
from cachecraft.evolution.llm.calls import Calls, Most, Place, Reply
from cachecraft.evolution.llm.settings import LlmSettings, Price
from cachecraft.evolution.loop import SearchProgress, search
from cachecraft.evolution.proposers.assembly import Proposing, proposing
from cachecraft.evolution.proposers.mutate import seed_proposals
from cachecraft.evolution.replaying import replayed
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.reporting.explain import explain_run
from cachecraft.reporting.search import calls_told
from cachecraft.runtime.structure import ModelStructure
from cachecraft.sandbox import Limits, Sandbox
from cachecraft.sandbox.client import clean_environment

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("brief_answers")]
KEY = "sk-very-secret-0123456789"
SETTINGS = DiscoverySettings(
    tasks=("ruler:niah_single_1",),
    ratios=(0.5,),
    length=330,
    items=1,
    batch=2,
    again=0,
    validation=1,
    level="scorer",
)
PROGRAM = """Idea: weigh lengths.

```python
def score_tokens(f):
    return f.keys.norm(dim=-1) + 0.{seed} * f.values.norm(dim=-1)
```"""


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(ModelStructure.of(model_of("llama")), build_tokenizer(), "tiny", "r0", "float32")


@pytest.fixture(autouse=True)
def easy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model can do no task, and most seeds are left out to save time."""
    monkeypatch.setattr(arena, "ELIGIBLE", -1.0)
    monkeypatch.setattr(loop, "seed_proposals", lambda *given: seed_proposals(*given)[:2])
    monkeypatch.setenv("CACHECRAFT_LLM_KEY", KEY)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(Limits(seconds=20)) as started:
        yield started


def found(subject: Subject, folder: Path, how: Proposing, budget: SearchBudget) -> list[Any]:
    record = SETTINGS.record() | {"models": ["tiny"], "dtypes": ["float32"]} | how.record()
    open_run(folder, record, ("seed",)).close()
    seen: list[SearchProgress] = []
    with (
        proposing(how, folder) as (make, calls),
        search([subject], SETTINGS, budget, folder, make=make, calls=calls, progress=seen.append) as population,
    ):
        assert seen[-1].calls is not None and seen[-1].calls.calls > 0
        heard = [each.calls.calls for each in seen if each.phase == "asking" and each.calls is not None]
        assert set(heard) == set(range(seen[-1].calls.calls + 1))  # the display goes on with each call
        return [(each.source, each.state, each.fitness, each.proposal.cost) for each in population.told()]


def test_a_search_asks_a_model_stops_at_its_money_and_is_replayed_without_an_endpoint(
    subject: Subject, box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Sandbox", lambda _: nullcontext(box))
    folder = tmp_path / "run"

    def act(request: dict[str, Any]) -> Act:
        return Act(PROGRAM.replace("{seed}", str(request["seed"])), usage=(1000, 1000))

    with standing_in(act) as server:
        llm = LlmSettings(server.url, ("m",), (Price(0.0, 100.0),), most_money=0.5)
        first = found(subject, folder, Proposing("llm", llm), SearchBudget(money=0.5))
        assert len(first) == 2 + 3  # each reply cost $0.10, and one of 2048 tokens more could have passed $0.50
        assert any(state == "ok" for _, state, *_ in first[2:])
    before = replayed(folder)
    assert (before.settings, before.models, before.diagnosis) == (SETTINGS, ("tiny",), True)
    assert found(subject, tmp_path / "again", Proposing("llm", llm, replay=folder), before.budget) == first
    story = "\n".join(explain_run(folder))
    assert "llm m: 3 candidates" in story and "$0.3000" in story
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


class Caught(CacheCraftError):
    """What the command asked for, instead of doing it."""


@pytest.mark.parametrize("off", ["off", False])  # as it is written, and as it was before
def test_what_a_replay_leaves_out_is_as_it_was_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: object
) -> None:
    how = Proposing("mix", LlmSettings("http://127.0.0.1:9/v1", ("m",), reply_tokens=77))
    record = SETTINGS.record() | {"models": ["tiny"], "dtypes": ["float32"], "diagnosis": off} | how.record()
    open_run(tmp_path, record, ()).close()
    with seeded(tmp_path):
        pass
    asked: dict[str, Any] = {}

    def instead(*models: Any, **given: Any) -> None:
        asked.update(given, models=models)
        raise Caught("Caught.")

    monkeypatch.setattr(discovery, "discover", instead)
    monkeypatch.setattr(cli, "_load", lambda *given: given[:2])
    command = ["discover", "--replay", str(tmp_path), "--run", str(tmp_path / "again"), "--items", "2"]
    command += ["--without", "knorm"]
    assert CliRunner().invoke(app, command).exit_code == 2
    assert asked["settings"] == replace(SETTINGS, items=2, without=("knorm",))
    assert asked["models"] == ([("tiny", "float32")],)
    assert (asked["budget"], asked["diagnosis"]) == (SearchBudget(candidates=1), False)
    assert asked["proposing_by"] == replace(how, replay=tmp_path)


def test_a_run_is_not_replayed_into_itself(tmp_path: Path) -> None:
    how = Proposing("mix", LlmSettings("http://127.0.0.1:9/v1", ("m",)), replay=tmp_path)
    with pytest.raises(CacheCraftError, match="cannot be replayed into itself"):
        discovery.discover([], settings=SETTINGS, budget=SearchBudget(candidates=1), run=tmp_path, proposing_by=how)
    command = ["discover", "--replay", str(tmp_path), "--run", str(tmp_path / ".." / tmp_path.name)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and "cannot be replayed into itself" in " ".join(result.output.split())


def test_models_may_be_named_anew_until_one_has_replied_and_diagnosis_is_part_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any, **others: Any) -> None:
        raise Caught("Caught.")

    monkeypatch.setattr(discovery, "search", stop)

    def begun(model: str, diagnosis: bool = True) -> str:
        how = Proposing("llm", LlmSettings("http://127.0.0.1:9/v1", (model,)))
        with pytest.raises(CacheCraftError) as caught:
            discovery.discover(
                [],
                settings=SETTINGS,
                budget=SearchBudget(candidates=9),
                run=tmp_path,
                proposing_by=how,
                diagnosis=diagnosis,
            )
        return str(caught.value)

    assert begun("wrong") == "Caught."
    calls = Calls(tmp_path)
    number = calls.begin(Place(1, 0), "wrong", (), Most(1, None))
    calls.failed(number, "no such model", billed=False, seconds=0.0)
    assert begun("m") == "Caught."
    assert read_run(tmp_path).settings["llm_models"] == ["m"]
    assert "with diagnosis" in begun("m", diagnosis=False)
    calls.answered(number, Reply("x"), None, 0.0)
    calls.close()
    assert begun("m") == "Caught."
    assert "llm_models ['m'], not ['other']" in begun("other")


def test_the_key_is_not_handed_to_candidates() -> None:
    assert KEY not in clean_environment().values()
    assert not {"CACHECRAFT_LLM_KEY", "OPENAI_API_KEY"} & clean_environment().keys()


def test_an_unknown_cost_is_shown_as_unknown(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    assert "cost unknown" in " ".join(calls_told(calls.totals()))
    failed, answered = (calls.begin(Place(1, slot), "m", (), Most(9, None)) for slot in (0, 1))
    calls.failed(failed, "no connection", billed=False, seconds=0.0)
    calls.answered(answered, Reply("x", tokens_in=1, tokens_out=1), None, 0.0)
    told = " ".join(calls_told(calls.totals()))  # what is free is no cost where there are no prices
    assert "cost unknown" in told and "$" not in told
    calls.close()


LLM = ["--proposer", "llm", "--llm-base-url", "http://127.0.0.1:9/v1", "--llm-model", "m"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--proposer", "llm"], "needs an endpoint and a model"),
        (["--proposer", "lllm"], "did you mean llm"),
        (["--llm-model", "m"], "asks no language model"),
        (["--budget", "$5"], "needs a language model"),
        ([*LLM, "--budget", "$5"], "needs prices"),
        ([*LLM, "--llm-price", "cheap"], "is no price"),
        ([*LLM, "--llm-price", "0,0", "--budget", "$5"], "never reached at prices of 0"),
        ([*LLM, "--llm-base-url", "somewhere"], "is no address"),
        ([*LLM, "--prompts", "nowhere"], "no folder nowhere"),
        ([*LLM, "--replay", "nowhere"], "not a run folder"),
        ([*LLM, "--llm-tokens", "0"], "mean nothing"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(given: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["discover", "--run", str(tmp_path / "run"), *given])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_missing_key_package_or_placeholder_is_told_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*given: str) -> str:
        result = CliRunner().invoke(app, ["discover", "--run", str(tmp_path / "run"), *LLM, *given])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    (tmp_path / "propose.md").write_text("Improve {{ parent }}.")
    assert "lacks {{ better }}" in said("--prompts", str(tmp_path))
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "pip install 'cachecraft-kv[llm]'" in said()
    monkeypatch.delenv("CACHECRAFT_LLM_KEY")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "There is no key for the endpoint; set CACHECRAFT_LLM_KEY" in said()
    assert not (tmp_path / "run").exists()


def test_prompts_are_written_by_a_command_and_only_runs_are_explained(tmp_path: Path) -> None:
    nothing = CliRunner().invoke(app, ["explain", str(tmp_path / "nothing")])
    assert nothing.exit_code == 2 and "holds no discovery run" in " ".join(nothing.output.split())
    assert CliRunner().invoke(app, ["prompts", "--write", str(tmp_path / "p")]).exit_code == 0
    assert (tmp_path / "p" / "propose.md").is_file()
