"""A whole search with a language model in it, on a tiny random model; its replay; and what the command line refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from tests.conftest import build_model, build_tokenizer
from tests.evolution.llm.standin import Act, standing_in
from typer.testing import CliRunner

from cachecraft.cli import app
from cachecraft.evaluation.selections import Subject
from cachecraft.evolution import arena, loop
from cachecraft.evolution.llm.calls import Calls
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, Price
from cachecraft.evolution.loop import SearchProgress, search
from cachecraft.evolution.proposers.assembly import Proposing, proposing
from cachecraft.evolution.proposers.mutate import seed_proposals
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.reporting.explain import explain_run
from cachecraft.reporting.search import calls_told
from cachecraft.runtime.structure import ModelStructure
from cachecraft.sandbox.client import clean_environment

KEY = "sk-very-secret-0123456789"
SETTINGS = DiscoverySettings(
    tasks=("ruler:niah_single_1",),
    ratios=(0.5, 0.75),
    length=500,
    items=1,
    batch=2,
    again=1,
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
    return Subject(ModelStructure.of(build_model("llama")), build_tokenizer(), "tiny", "r0", "float32")


@pytest.fixture(autouse=True)
def easy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model can do no task, and most seeds are left out to save time."""
    monkeypatch.setattr(arena, "ELIGIBLE", -1.0)
    monkeypatch.setattr(loop, "seed_proposals", lambda *given: seed_proposals(*given)[:2])
    monkeypatch.setenv("CACHECRAFT_LLM_KEY", KEY)


def found(subject: Subject, folder: Path, how: Proposing, budget: SearchBudget) -> list[Any]:
    seen: list[SearchProgress] = []
    with (
        proposing(how, folder) as (make, calls),
        search([subject], SETTINGS, budget, folder, make=make, calls=calls, progress=seen.append) as population,
    ):
        assert seen[-1].calls is not None and seen[-1].calls.calls > 0
        return [(each.source, each.state, each.fitness, each.proposal.cost) for each in population.told()]


def test_a_search_asks_a_model_stops_at_its_money_and_is_replayed_without_an_endpoint(
    subject: Subject, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    budget = SearchBudget(money=0.5)

    def act(request: dict[str, Any]) -> Act:
        return Act(PROGRAM.replace("{seed}", str(request["seed"])), usage=(1000, 1000))

    with standing_in(act) as server:
        llm = LlmSettings(server.url, ("m",), (Price(0.0, 100.0),), most_money=0.5)
        first = found(subject, folder, Proposing("llm", llm), budget)
    assert len(first) == 2 + 3  # each reply cost $0.10, and one of 2048 tokens more could have passed $0.50
    assert all(state == "ok" for _, state, *_ in first[2:])
    again = found(subject, tmp_path / "again", Proposing("llm", llm, replay=folder), budget)
    assert again == first
    story = "\n".join(explain_run(folder))
    assert "llm m: 3 candidates" in story and "$0.3000" in story
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_the_key_is_not_handed_to_candidates() -> None:
    assert KEY not in clean_environment().values()
    assert not {"CACHECRAFT_LLM_KEY", "OPENAI_API_KEY"} & clean_environment().keys()


def test_an_unknown_cost_is_shown_as_unknown(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    assert "cost unknown" in " ".join(calls_told(calls.totals()))
    calls.close()


def test_a_run_without_a_key_ends_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHECRAFT_LLM_KEY")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    how = Proposing("llm", LlmSettings("http://127.0.0.1:9/v1", ("m",)))
    with pytest.raises(EndpointError, match="no key"), proposing(how, tmp_path):
        pass


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


def test_prompts_are_written_by_a_command(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["prompts", "--write", str(tmp_path / "p")]).exit_code == 0
    assert (tmp_path / "p" / "propose.md").is_file()
