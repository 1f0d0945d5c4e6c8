"""Programs that cheat or break: the gate refuses them, and so does the sandbox alone, each with a reason of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.evolution.conftest import CANARIES

from cachecraft.evolution.admission import contract_stage, static_stage
from cachecraft.evolution.diagnosis import hack_of
from cachecraft.sandbox import Ask, Program, Sandbox, State

pytestmark = pytest.mark.system

ASKS = (Ask("one", (200, 40)), Ask("two", (200, 40)))
SECONDS = 1.5  # for those that never end

# What the gate says, or "" where only running the program shows it; then how it fares when it runs all the same.
EXPECTED: dict[str, tuple[str, State, str]] = {
    "endless": ("while loop", State.TIMEOUT, "not done after 1.5 seconds"),
    "slow": ("", State.TIMEOUT, "not done after 1.5 seconds"),
    "sleeps": ("imports time", State.TIMEOUT, "not done after 1.5 seconds"),
    "forks": ("imports os", State.FORBIDDEN, "line 8 to start a process"),
    "threads": ("imports threading", State.FORBIDDEN, "something other than memory and time"),
    "runs_a_program": ("imports os", State.FORBIDDEN, "line 7 to start a process"),
    "hoards": ("", State.MEMORY, "more memory than it may have"),
    "hoards_slowly": ("", State.MEMORY, "more memory than it may have"),
    "hoards_shared": ("imports mmap", State.MEMORY, "more memory than it may have"),
    "floods": ("name print", State.OUTPUT, "printed or wrote more"),
    "gives_up_when_hard": ("uses raise", State.RAISED, r"ValueError in score_tokens on layer 0 .*line 6.*too hard"),
    "fails_when_hard": ("", State.RAISED, "IndexError in score_tokens"),
    "recurses": ("", State.RAISED, "RecursionError"),
    "returns_lists": ("", State.BROKEN, "scores of type list"),
    "writes_keys": ("", State.WROTE_FEATURES, "wrote into keys"),
    "writes_features": ("writes into values", State.WROTE_FEATURES, "wrote into values"),
    "writes_uncounted": ("attribute numpy", State.WROTE_FEATURES, "wrote into values"),
    "remembers": ("could change", State.STATE_LEAK, "keep nothing between calls"),
    "two_faced": ("could change", State.STATE_LEAK, "recorded contexts and budgets came in another order"),
    "two_faced_chance": ("global random state", State.NONDETERMINISTIC, "two results for one recorded context"),
    "chance": ("global random state", State.NONDETERMINISTIC, "global random state"),
    "reads_files": ("uses with", State.FORBIDDEN, "line 5 to open or change a file"),
    "deletes_files": ("imports os", State.FORBIDDEN, "line 7 to open or change a file"),
    "uses_network": ("imports socket", State.FORBIDDEN, "line 7 to use the network"),
    "reads_environment": ("imports os", State.RAISED, "KeyError"),
    "loads_modules": ("imports wsgiref", State.BROKEN, "No module named"),
    "keeps_everything": ("", State.BROKEN, "keep exactly the budget"),
    "duplicate_indices": ("", State.BROKEN, "keeps 1 of"),
    "negative_indices": ("", State.BROKEN, "selected with a torch.int64"),
    "exits": ("imports os", State.CRASHED, "ended itself with code 0"),
    "kills_parent": ("imports os", State.FORBIDDEN, "line 7 to reach another process"),
    "kills_itself": ("imports ctypes", State.CRASHED, "crashed with SIGSEGV in line 7"),
    "replaces_checks": ("runs at the top level|could change", State.BROKEN, "keeps 400 of 400|keep exactly"),
    "forges_answer": ("imports os", State.MALFORMED, "cannot be read"),
}
# Which hack of a search's diagnosis it is, by what the gate or else the sandbox says of it; the others are mere faults.
HACKS = {
    "gives up on hard items": {"gives_up_when_hard", "fails_when_hard"},
    "writes into what it is given": {"writes_keys", "writes_features"},
    "keeps state between calls": {"remembers", "two_faced"},
    "draws by its own dice": {"chance", "two_faced_chance"},
    "keeps another number than its budget": {"keeps_everything", "duplicate_indices"},
    "selects with indices": {"negative_indices"},
    "reaches outside": {"deletes_files", "uses_network", "reads_environment", "forks", "forges_answer"},
}
_HACKERS = {name: hack for hack, names in HACKS.items() for name in names}
# These keep the contract: only scores on fresh samples, or layer by layer, show what they are worth.
HARMLESS = {"hard_codes_places", "one_head_only"}


def test_every_canary_is_expected_to_do_something() -> None:
    assert {path.stem for path in CANARIES.glob("*.py")} == {*EXPECTED, *HARMLESS}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_gate_names_what_it_can_see(name: str, canary: Callable[[str], Program]) -> None:
    words = EXPECTED[name][0]
    verdict = static_stage(canary(name))
    assert verdict.state is (State.REFUSED if words else State.OK)
    assert re.search(words, verdict.reason)
    if words and name in _HACKERS:
        assert hack_of(verdict.reason) == _HACKERS[name]


@pytest.fixture(autouse=True)
def bait(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A secret in this process's environment and a file that everyone may delete."""
    monkeypatch.setenv("CACHECRAFT_CANARY_KEY", "secret")
    path = Path("/tmp/cachecraft-canary")
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_sandbox_alone_rejects_it_with_its_own_reason(
    name: str, canary: Callable[[str], Program], sandbox: Sandbox, bait: Path
) -> None:
    _, state, words = EXPECTED[name]
    server, program = sandbox.server_id, canary(name)
    began = time.monotonic()
    if state is State.TIMEOUT:
        verdict = sandbox.run(program, ASKS, seconds=SECONDS)
    elif name in {"exits", "forges_answer", "writes_keys", "writes_uncounted", "writes_features"}:
        verdict = sandbox.run(program, ASKS)
    else:
        verdict = contract_stage(sandbox, program, ASKS)
    assert (verdict.state, bool(re.search(words, verdict.reason))) == (state, True), verdict
    assert re.match(rf"Policy (file )?{name}\b", verdict.reason)
    assert verdict.reason.endswith(".")
    assert verdict.choices == ()
    if name in _HACKERS and not EXPECTED[name][0]:
        assert hack_of(verdict.reason) == _HACKERS[name]
    assert bait.exists()
    assert sandbox.server_id == server, "the server outlives its candidates"
    if state is State.TIMEOUT:
        assert time.monotonic() - began < SECONDS + 5


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_only_scores_can_show_passes_both_stages(
    name: str, canary: Callable[[str], Program], sandbox: Sandbox
) -> None:
    assert static_stage(canary(name)).ok
    verdict = contract_stage(sandbox, canary(name), ASKS)
    assert verdict.ok, verdict
    assert [choice.ask for choice in verdict.choices] == list(ASKS)
