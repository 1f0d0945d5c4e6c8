"""The sandbox: the same choices as in process, walls that hold one by one, and nothing lost when processes die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tests.evolution.conftest import LAYERS, TOKENS, recorded_layers
from torch import Tensor

from cachecraft.evolution.sandbox import (
    Ask,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    SharedItem,
    State,
    share,
    system_calls,
)
from cachecraft.evolution.sandbox.client import clean_environment
from cachecraft.evolution.sandbox.confinement import adopt_orphans, children
from cachecraft.evolution.sandbox.server import bury_the_rest
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import Policy, builtin_policies, load_policy, policy_from_source
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.sequence import decide_sequence
from cachecraft.policy.source import read_source

POLICIES = Path(load_policy.__code__.co_filename).parents[1] / "policies"
KEEPS = (200, 100, 13, 1)
KNORM = "def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n"
OWN_SPLIT = KNORM + textwrap.dedent("""
    import torch
    def allocate(scores, total, floor):
        counts = torch.full((len(scores), scores[0].shape[0]), total // (len(scores) * scores[0].shape[0]))
        counts[0] += 10
        counts[-1] -= 10
        return counts
""")
READS_BUDGET = "def score_tokens(f):\n    return f.keys.norm(dim=-1) * (1 if int(f.keep[0]) > 100 else -1)\n"
ENDLESS = "def score_tokens(f):\n    while True:\n        pass\n"


def specifications() -> list[str]:
    """Every built-in policy; a wrapper around a plain one."""
    texts = {name: (POLICIES / f"{name}.py").read_text() for name in builtin_policies()}
    return [f"{name}(vnorm)" if read_source(text, name).wraps else name for name, text in texts.items()]


def in_process(policy: Policy, layers: list[LayerFeatures], keeps: tuple[int, ...]) -> list[Tensor]:
    """What evaluation decides: (L, G, T) bool for each budget."""
    decided = decide_sequence(policy, lambda: iter(layers), keeps)
    return [torch.stack([decision.mask for decision in decisions]) for decisions in decided]


def policy_of(source: str) -> Policy:
    return policy_from_source(source, name="mine", origin="mine.py")


@pytest.mark.parametrize("spec", [*specifications(), "snapkv:window=32", "frc:span=16,sinks=0"])
def test_a_policy_chooses_bit_for_bit_what_it_chooses_in_process(spec: str, sandbox: Sandbox) -> None:
    policy = load_policy(spec)
    verdict = sandbox.run(Program.of(policy), [Ask("one", KEEPS), Ask("two", KEEPS[:1])])
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_item_is_what_was_shared_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    layers = [synthetic_layer(70, layer=index, dtype=dtype, seed=index) for index in range(2)]
    item = share(tmp_path / "a.item", layers, warm=lambda f: (f.window_attention(8), f.keys_unrotated))
    assert item.shape == (2, 2, 70)
    for layer, mapped in zip(layers, item.layers(), strict=True):
        for name in ("keys", "values", "queries", "output_projection", "special_mask", "punctuation_mask"):
            assert torch.equal(layer.given(name), mapped.given(name))
            assert layer.given(name).stride() == mapped.given(name).stride()
            assert mapped.given(name).data_ptr() % 64 == 0
        assert (mapped.layer, mapped.seed, mapped.scaling) == (layer.layer, layer.seed, layer.scaling)
        view = mapped.view()
        assert torch.equal(view.window_attention(8), layer.view().window_attention(8))
        assert mapped.heavy == []
        assert torch.equal(view.rotate(view.keys, 3), layer.view().rotate(layer.view().keys, 3))


def test_strides_survive_since_a_product_may_depend_on_them(tmp_path: Path) -> None:
    plain = synthetic_layer(30)
    crosswise = plain.given("keys").transpose(1, 2).contiguous().transpose(1, 2)
    layer = LayerFeatures(crosswise, plain.given("values"), plain.given("queries"), layer=0, layers=1)
    mapped = next(share(tmp_path / "a.item", [layer]).layers())
    assert mapped.given("keys").stride() == crosswise.stride() != plain.given("keys").stride()
    assert torch.equal(mapped.given("keys"), crosswise)


def test_layers_of_two_shapes_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="one model"):
        share(tmp_path / "a.item", [synthetic_layer(10), synthetic_layer(11)])
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays"
    (tmp_path / "b.item").write_bytes(b"something else entirely")
    with pytest.raises(SandboxError, match=r"b\.item cannot be read"):
        SharedItem.open(tmp_path / "b.item")
    with pytest.raises(SandboxError, match=r"c\.item cannot be read \(No such file"):
        SharedItem.open(tmp_path / "c.item")


def test_items_of_one_model_share_their_output_projections(items: dict[str, SharedItem]) -> None:
    first, second = items["one"], items["two"]
    assert first.files[1] == second.files[1]
    assert first.files[0] != second.files[0]


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


@pytest.fixture(scope="module")
def unfiltered(items: dict[str, SharedItem]) -> Iterator[Sandbox]:
    """A sandbox whose other walls stand alone, as where the system refuses a filter of system calls."""
    with Sandbox(Limits(seconds=20, memory_bytes=192 << 20), filter_calls=False) as started:
        assert any("filter" in each for each in started.missing)
        started.load("one", items["one"])
        yield started


WALLS = {
    "no file can be opened": ("open('/etc/hostname')", State.RAISED, "Too many open files"),
    "no socket can be made": ("__import__('socket').socket()", State.RAISED, "Too many open files"),
    "no process can be started": ("__import__('os').fork()", State.RAISED, "Resource temporarily unavailable"),
    "no limit can be raised": (
        "__import__('resource').setrlimit(7, (99, 99))",
        State.RAISED,
        "not allowed to raise maximum limit|ModuleNotFoundError",
    ),
    "memory is limited": ("f.keys.new_ones(1 << 32)", State.MEMORY, "more memory"),
    "output is limited": ("print('x' * (1 << 22))", State.OUTPUT, "printed or wrote more"),
    "features are read-only": ("f.keys.zero_()", State.WROTE_FEATURES, "wrote into keys of layer 0 in line 2"),
}


@pytest.mark.parametrize("wall", WALLS)
def test_without_a_filter_of_system_calls(wall: str, unfiltered: Sandbox) -> None:
    statement, state, words = WALLS[wall]
    if wall == "no process can be started" and any("root" in each for each in unfiltered.missing):
        pytest.skip("the system does not count the processes of root")
    source = f"def score_tokens(f):\n    {statement}\n    return f.keys[..., 0]\n"
    verdict = unfiltered.run(Program("mine", source), [Ask("one", (5,))])
    assert verdict.state is state, verdict
    assert re.search(words, verdict.reason), verdict


def test_without_a_filter_whoever_kills_the_server_is_rejected(
    unfiltered: Sandbox, canary: Callable[[str], Program]
) -> None:
    verdict = unfiltered.run(canary("kills_parent"), [Ask("one", (5,))])
    # Where candidates are another user than the server they cannot reach it; elsewhere it is replaced, twice.
    assert verdict.state in {State.RAISED, State.CRASHED}
    assert re.search("not permitted|server died, twice", verdict.reason), verdict
    assert unfiltered.run(Program("mine", KNORM), [Ask("one", (5,))]).ok


def test_the_numbers_of_system_calls_are_those_of_the_kernels_headers() -> None:
    headers = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h"))
    if not all(path.is_file() for path in headers):
        pytest.skip("the kernel's headers for user programs are not installed")
    for column, path in enumerate(headers):
        told = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
        known = {name: int(number) for name, number in told} | {"newfstatat": {0: 262, 1: 79}[column]}
        for name, numbers in system_calls._NUMBERS.items():
            assert known.get(name) == numbers[column], name


def test_a_server_that_was_killed_is_replaced_with_its_items(items: dict[str, SharedItem]) -> None:
    with Sandbox(Limits(seconds=60)) as sandbox:
        sandbox.load("one", items["one"])
        first = sandbox.run(Program("mine", KNORM), [Ask("one", (50,))])
        # The candidate that runs ends with it, is asked once more and is not blamed for one death.
        slow = "import time\ndef score_tokens(f):\n    time.sleep(0.5)\n    return -f.keys.norm(dim=-1)\n"
        victim = sandbox.server_id
        assert victim is not None
        threading.Timer(0.7, os.kill, (victim, signal.SIGKILL)).start()
        second = sandbox.run(Program("mine", slow), [Ask("one", (50,))])
        assert second.ok, second
        assert second.choices[0].bits == first.choices[0].bits
        assert sandbox.server_id != victim


DRIVER = """
import sys
from pathlib import Path
from cachecraft.evolution.sandbox import Ask, Limits, Program, Sandbox, SharedItem
sandbox = Sandbox(Limits(seconds=300))
sandbox.start()
sandbox.load("one", SharedItem.open(Path(sys.argv[1])))
print(sandbox.server_id, flush=True)
sandbox.run(Program("endless", sys.argv[2]), [Ask("one", (5,))])
"""


def test_server_and_candidate_end_when_their_driver_is_killed(items: dict[str, SharedItem]) -> None:
    path = str(items["one"].files[0])
    with subprocess.Popen([sys.executable, "-c", DRIVER, path, ENDLESS], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        server = psutil.Process(int(driver.stdout.readline()))
        wait_for(lambda: len(server.children()) == 1)
        candidate = server.children()[0]
        driver.kill()
    gone, alive = psutil.wait_procs([server, candidate], timeout=20)
    assert alive == []
    assert len(gone) == 2


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def buried() -> bool:
    """Leave a process in a session of its own behind and have it ended, as a server does after a candidate."""
    adopt_orphans()
    told, tell = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(tell, str(os.getpid()).encode())
            time.sleep(600)
        time.sleep(0.2)
        os._exit(0)
    grandchild = int(os.read(told, 20))
    os.waitpid(child, 0)
    bury_the_rest(child)
    return children() == [] and not os.path.exists(f"/proc/{grandchild}")


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_what_a_candidate_leaves_behind_in_another_session_is_ended_too() -> None:
    if (pid := os.fork()) == 0:
        code = 1
        try:
            code = 0 if buried() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_forking_each_candidate_has_a_server_of_its_own(items: dict[str, SharedItem]) -> None:
    with Sandbox(Limits(seconds=60), fork=False) as sandbox:
        sandbox.load("one", items["one"])
        verdict = sandbox.run(Program("mine", KNORM), [Ask("one", (50,))])
        assert verdict.ok, verdict
        expected = in_process(policy_of(KNORM), recorded_layers(0), (50,))[0]
        assert torch.equal(torch.stack(verdict.choices[0].masks(0)), expected)
        assert sandbox.server_id is None
        late = sandbox.run(Program("mine", ENDLESS), [Ask("one", (5,))], seconds=2.0)
        assert late.state is State.TIMEOUT
