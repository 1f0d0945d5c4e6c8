"""The sandbox: the same choices as in process, with what they cost, and a sentence for what goes wrong."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import pytest
import torch
from tests.evolution.conftest import ENDLESS, KNORM, LAYERS, TOKENS, in_process, policy_of, recorded_layers

from cachecraft.policy.contract import load_policy
from cachecraft.policy.source import read_source
from cachecraft.sandbox import Ask, Limits, Program, Sandbox, SandboxError, State
from cachecraft.sandbox.client import clean_environment

pytestmark = pytest.mark.system

POLICIES = Path(load_policy.__code__.co_filename).parents[1] / "policies"
KEEPS = (200, 100, 13, 1)
OWN_SPLIT = KNORM + textwrap.dedent("""
    import torch
    def allocate(scores, total, floor):
        counts = torch.full((len(scores), scores[0].shape[0]), total // (len(scores) * scores[0].shape[0]))
        counts[0] += 10
        counts[-1] -= 10
        return counts
""")
READS_BUDGET = "def score_tokens(f):\n    return f.keys.norm(dim=-1) * (1 if int(f.keep[0]) > 100 else -1)\n"


def specifications() -> list[str]:
    """Every built-in policy; a wrapper around a plain one."""
    texts = {path.stem: path.read_text() for path in sorted(POLICIES.glob("[!_]*.py"))}
    return [f"{name}(vnorm)" if read_source(text, name).wraps else name for name, text in texts.items()]


@pytest.mark.parametrize("spec", [*specifications(), "snapkv:window=32", "frc:span=16,sinks=0"])
def test_a_policy_chooses_bit_for_bit_what_it_chooses_in_process(spec: str, sandbox: Sandbox) -> None:
    policy = load_policy(spec)
    asks = [Ask("one", KEEPS), Ask("two", KEEPS[:1])]
    if "projected_values" in policy.needs:
        asks.pop()  # both items carry the first one's output projections, as those of one model do
    verdict = sandbox.run(Program.of(policy), asks)
    assert verdict.ok, verdict
    for seed, choice in enumerate(verdict.choices):
        expected = in_process(policy, recorded_layers(seed), choice.ask.keeps)
        found = [torch.stack(choice.masks(budget)) for budget in range(len(choice.bits))]
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("source", [OWN_SPLIT, READS_BUDGET], ids=["divides the budget", "reads its budget"])
def test_programs_that_look_at_the_budget_choose_as_in_process(source: str, sandbox: Sandbox) -> None:
    verdict = sandbox.run(Program("mine", source), [Ask("one", (200, 30))])
    assert verdict.ok, verdict
    expected = in_process(policy_of(source), recorded_layers(0), (200, 30))
    choice = verdict.choices[0]
    assert all(torch.equal(torch.stack(choice.masks(budget)), masks) for budget, masks in enumerate(expected))
    assert choice.read_keep == (source is READS_BUDGET)


def test_a_selector_and_parameters_from_outside_apply(sandbox: Sandbox) -> None:
    policy = load_policy("snapkv:window=32", selector="chunks:20")
    verdict = sandbox.run(Program.of(policy), [Ask("one", (120,))])
    expected = in_process(policy, recorded_layers(0), (120,))[0]
    assert torch.equal(torch.stack(verdict.choices[0].masks(0)), expected)


def test_a_choice_says_what_it_cost_and_what_the_item_did_not_bring(sandbox: Sandbox) -> None:
    verdict = sandbox.run(Program.of(load_policy("snapkv")), [Ask("one", (120, 13))])
    choice = verdict.choices[0]
    assert choice.computed == ("window_attention(64)",)
    assert choice.shape == (LAYERS, 3, TOKENS)
    assert choice.forced == (False, True), "a window of 64 fills a budget of 13"
    assert 0 < choice.seconds <= verdict.seconds
    assert verdict.cpu_seconds > 0
    assert sandbox.run(Program.of(load_policy("frc")), [Ask("one", (120,))]).choices[0].computed == ()


def test_asking_about_what_was_not_loaded_says_so(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="'three' was not loaded"):
        sandbox.run(Program("mine", KNORM), [Ask("three", (1,))])


def test_limits_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SandboxError, match="seconds=0"):
        Limits(seconds=0)


def test_a_budget_that_does_not_fit_is_the_callers_fault_and_said(sandbox: Sandbox) -> None:
    verdict = sandbox.run(Program("mine", KNORM), [Ask("one", (TOKENS + 1,))])
    assert (verdict.state, verdict.rule) == (State.BROKEN, "BudgetError")


def test_printing_a_little_is_shown_and_made_harmless(sandbox: Sandbox) -> None:
    source = "def score_tokens(f):\n    print('\\x1b[31mhello', f.layer)\n    return f.keys[..., 0]\n"
    verdict = sandbox.run(Program("mine", source), [Ask("one", (5,))])
    assert verdict.ok
    assert verdict.printed.startswith("[31mhello 0")
    assert verdict.printed.isprintable()


def test_reading_and_writing_beyond_an_array_is_a_crash_not_a_write_into_features(sandbox: Sandbox) -> None:
    source = "import ctypes\ndef score_tokens(f):\n    ctypes.memset(64, 0, 8)\n"
    verdict = sandbox.run(Program("mine", source), [Ask("one", (5,))])
    assert (verdict.state, verdict.reason) == (
        State.CRASHED,
        "Policy mine crashed with SIGSEGV in line 3; it reached memory that is not there.",
    )


def test_the_written_array_and_the_line_are_named(sandbox: Sandbox) -> None:
    source = "def score_tokens(f):\n    a = f.attention_received()\n    a += f.layer // 2\n    return a.mean(1)\n"
    verdict = sandbox.run(Program("mine", source), [Ask("one", (5,))])
    assert verdict.state is State.WROTE_FEATURES
    assert "wrote into attention_received of layer 0 in line 3" in verdict.reason


def test_a_deadline_is_kept_though_other_candidates_have_more_time(sandbox: Sandbox) -> None:
    began = time.monotonic()
    verdict = sandbox.run(Program("mine", ENDLESS), [Ask("one", (5,))], seconds=1.0)
    assert (verdict.state, verdict.choices) == (State.TIMEOUT, ())
    assert 1.0 <= verdict.seconds < 3.0
    assert time.monotonic() - began < 4.0


def test_nothing_of_this_environment_reaches_a_candidate(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "x")
    assert not {"SECRET_API_KEY", "HOME", "USER"} & set(clean_environment())
    source = "import os\nprint(sorted(os.environ))\n" + KNORM
    verdict = sandbox.run(Program("mine", source), [Ask("one", (5,))])
    names = set(re.findall(r"'(\w+)'", verdict.printed))
    assert names <= {
        *clean_environment(),
        "LC_CTYPE",
        "KMP_INIT_AT_FORK",
        "KMP_DUPLICATE_LIB_OK",
        "TORCHINDUCTOR_CACHE_DIR",
    }
