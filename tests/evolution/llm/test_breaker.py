"""The breaker: who is left alone, who is waited for and how long, what one call after a pause may do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecraft.evolution.llm import breaker
from cachecraft.evolution.llm.breaker import FAILURES, PAUSE, PAUSES, NoAnswerError
from cachecraft.evolution.llm.calls import Calls, Place, Reply
from cachecraft.evolution.llm.endpoint import Request, TransientError, messages_of
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, RefusedCallError
from cachecraft.evolution.llm.transport import Transport

DEADLINE = 30.0


class World:
    """An endpoint whose models are silent or not, a clock that waiting moves on, and what was said meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.said: list[str] = []
        self.sent: list[str] = []
        self.silent: dict[str, Exception] = {}

    def send(self, request: Request, seconds: float) -> Reply:
        self.sent.append(request.model)
        self.now += 1
        if request.model in self.silent:
            raise self.silent[request.model]
        return Reply("x", tokens_in=1, tokens_out=1)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def transport(world: World, tmp_path: Path) -> Iterator[Transport]:
    settings = LlmSettings("http://host/v1", ("a", "b"), deadline=DEADLINE, reply_tokens=50)
    calls = Calls(tmp_path)
    yield Transport(settings, calls, world, sleep=world.sleep, clock=lambda: world.now, say=world.said.append)
    calls.close()


def ask(transport: Transport, slot: int, model: str = "a") -> None:
    transport.ask(Place(1, slot), model, messages_of(("user", "Write.")), 7, transport.deadline())


def fail(transport: Transport, times: int, model: str = "a") -> None:
    for slot in range(times):
        with pytest.raises(NoAnswerError):
            ask(transport, slot, model)


def test_after_a_pause_one_call_is_sent_and_a_model_that_answers_is_trusted_again(
    world: World, transport: Transport
) -> None:
    world.silent["a"] = TransientError("status 500")
    fail(transport, FAILURES)
    assert len(world.sent) > 2 * FAILURES  # each was tried again and again
    world.slept.clear()
    world.sent.clear()
    with pytest.raises(NoAnswerError):
        ask(transport, 10)
    assert world.slept == pytest.approx([PAUSE]) and world.sent == ["a"]
    world.silent.clear()
    ask(transport, 11)
    assert world.slept == pytest.approx([PAUSE, PAUSE])
    world.silent["a"] = TransientError("status 500")
    world.sent.clear()
    with pytest.raises(NoAnswerError):
        ask(transport, 12)
    assert len(world.sent) > 2


def test_a_run_that_stops_tells_for_how_long_there_was_no_answer(world: World, transport: Transport) -> None:
    world.silent["a"] = TransientError("status 500")
    fail(transport, 1)
    first = world.now
    for slot in range(1, FAILURES + PAUSES):
        with pytest.raises(NoAnswerError):
            ask(transport, slot)
    minutes = round((world.now - first) / 60)
    with pytest.raises(EndpointError, match=f"no answer for {minutes} minutes; the run so far is kept"):
        ask(transport, 99)


def test_a_silent_model_is_left_alone_while_another_answers_and_nobody_waits(
    world: World, transport: Transport
) -> None:
    world.silent["a"] = TransientError("status 500")
    for slot in range(FAILURES):
        with pytest.raises(NoAnswerError):
            ask(transport, slot)
        ask(transport, slot, "b")  # what another answers does not hide the silence
    world.sent.clear()
    world.slept.clear()
    for slot in range(FAILURES, FAILURES + 5):
        with pytest.raises(NoAnswerError, match="left alone"):
            ask(transport, slot)
    assert world.sent == [] and world.slept == []
    world.now += PAUSE
    with pytest.raises(NoAnswerError, match="500"):
        ask(transport, 20)
    assert world.sent == ["a"] and world.slept == []


def test_a_wait_beyond_the_deadline_is_waited_for_before_the_next_proposal(world: World, transport: Transport) -> None:
    world.silent["a"] = TransientError("status 429", wait=600.0)
    fail(transport, 1)
    assert world.sent == ["a"] and world.slept == []
    world.silent.clear()
    ask(transport, 1)
    assert world.slept == [600.0]
    assert world.said == [f"The endpoint asks to wait; trying again in 600 seconds (1 of {PAUSES})."]


def test_a_wait_that_means_nothing_is_bounded(world: World, transport: Transport) -> None:
    world.silent["a"] = TransientError("status 429", wait=1e300)
    fail(transport, 1)
    world.silent.clear()
    ask(transport, 1)
    assert world.slept == [breaker.LONGEST_PAUSE]


def test_a_call_that_is_refused_is_an_answer(world: World, transport: Transport) -> None:
    for _ in range(2):
        world.silent["a"] = TransientError("status 500")
        fail(transport, FAILURES - 1)
        world.silent["a"] = RefusedCallError("too long")
        with pytest.raises(RefusedCallError):
            ask(transport, 50)
    assert max(world.slept) < PAUSE - 1


def test_a_replay_carries_what_failed(world: World, transport: Transport, tmp_path: Path) -> None:
    world.silent["a"] = TransientError("status 500", billed=True)
    fail(transport, 1)
    ask(transport, 1, "b")
    own = Calls(tmp_path / "again")
    again = Transport(transport.settings, own, None, replay=transport.calls)
    for _ in range(2):  # resumed
        fail(again, 1)
        ask(again, 1, "b")
    assert [(each.slot, each.model) for each in own.asked()] == [(0, "a"), (1, "b")]
    assert [(each.slot, each.model) for each in transport.calls.asked()] == [(0, "a"), (1, "b")]
    assert own.totals().failed == 1
    own.close()
