"""The walls around a candidate, one by one, as they stand where the system refuses a filter of system calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.evolution.conftest import KNORM

from cachecraft.sandbox import Ask, Limits, Program, Sandbox, SharedItem, State, system_calls

pytestmark = pytest.mark.system


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
