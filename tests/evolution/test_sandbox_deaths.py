"""Processes that die or are killed: the next candidate runs, nothing is left behind, nobody else is blamed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest
import torch
from tests.evolution.conftest import ENDLESS, KNORM, in_process, policy_of, recorded_layers

from cachecraft.sandbox import Ask, Limits, Program, Sandbox, SharedItem, State
from cachecraft.sandbox.confinement import adopt_orphans, children
from cachecraft.sandbox.server import bury_the_rest

pytestmark = pytest.mark.system


def test_a_server_that_was_killed_is_replaced_with_its_items(sandbox: Sandbox) -> None:
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


def drive(item: SharedItem, tell: int) -> None:
    """Run a candidate that never ends and tell the server's process id."""
    sandbox = Sandbox(Limits(seconds=300))
    sandbox.start()
    sandbox.load("one", item)
    os.write(tell, str(sandbox.server_id).encode())
    sandbox.run(Program("endless", ENDLESS), [Ask("one", (5,))])


def test_server_and_candidate_end_when_their_driver_is_killed(items: dict[str, SharedItem]) -> None:
    told, tell = os.pipe()
    if (driver := os.fork()) == 0:
        try:
            drive(items["one"], tell)
        finally:
            os._exit(1)
    os.close(tell)
    server = psutil.Process(int(os.read(told, 20)))
    os.close(told)
    wait_for(lambda: len(server.children()) == 1)
    candidate = server.children()[0]
    os.kill(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
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
        late = sandbox.run(Program("mine", ENDLESS), [Ask("one", (5,))], seconds=1.0)
        assert late.state is State.TIMEOUT
