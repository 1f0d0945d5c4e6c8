"""Calls to a stand-in endpoint: each way to fail, what is tried again, when it ends, what is counted and limited."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from tests.evolution.llm.standin import Act, StandIn, standing_in

from cachecraft.errors import RunError
from cachecraft.evolution.llm import breaker, transport
from cachecraft.evolution.llm.breaker import NoAnswerError
from cachecraft.evolution.llm.calls import Calls, Place, open_recorded
from cachecraft.evolution.llm.endpoint import OpenAiEndpoint, Request, TransientError, messages_of, most_tokens
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, Price, key_from_environment, parse_price
from cachecraft.evolution.llm.transport import LimitReachedError, Transport

KEY = "sk-very-secret-0123456789"
MESSAGES = messages_of(("system", "You write."), ("user", "Write."))
GOOD = Act("```python\n```")


class Time:
    """A clock that sleeping moves on."""

    def __init__(self) -> None:
        self.extra = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.extra += seconds

    def clock(self) -> float:
        return time.monotonic() + self.extra


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Calls]:
    found = Calls(tmp_path)
    yield found
    found.close()


def asker(server: StandIn, calls: Calls, **changes: Any) -> tuple[Transport, Time]:
    given: dict[str, Any] = {"base_url": server.url, "models": ("m",), "deadline": 30.0, "reply_tokens": 50}
    settings = LlmSettings(**(given | changes))
    moment = Time()
    endpoint = OpenAiEndpoint(server.url, KEY)
    return Transport(settings, calls, endpoint, sleep=moment.sleep, clock=moment.clock), moment


def ask(found: Transport, slot: int = 0) -> str | None:
    return found.ask(Place(1, slot), "m", MESSAGES, 7, found.deadline()).reply.text


def test_a_reply_comes_with_its_tokens_and_cost_and_is_asked_for_once(calls: Calls) -> None:
    with standing_in([GOOD]) as server:
        found, _ = asker(server, calls, prices=(Price(1.0, 10.0),))
        first = found.ask(Place(1, 0), "m", MESSAGES, 7, found.deadline())
        again = found.ask(Place(1, 0), "m", MESSAGES, 7, found.deadline())
    assert first == again
    assert first.reply.text == GOOD.text and (first.reply.tokens_in, first.reply.tokens_out) == (100, 20)
    assert first.money == pytest.approx((100 * 1 + 20 * 10) / 1e6)
    assert len(server.asked) == 1 and server.asked[0]["max_tokens"] == 50 and server.asked[0]["seed"] == 7
    assert server.asked[0]["path"] == "/v1/chat/completions"
    assert calls.totals().calls == 1


@pytest.mark.parametrize(
    "bad",
    [
        Act(status=500),
        Act(status=503, body="<html>overloaded</html>", headers={"content-type": "text/html"}),
        Act(status=429),
        Act(cut=True, text="x"),
        Act(body="{not json"),
        Act(body="[]"),
        Act(body='{"choices": []}'),
        Act(body='{"choices": "none"}'),
        Act(body="hello", headers={"content-type": "text/plain"}),
    ],
)
def test_what_may_pass_is_tried_again(calls: Calls, bad: Act) -> None:
    with standing_in([bad, GOOD]) as server:
        found, moment = asker(server, calls)
        assert ask(found) == GOOD.text
    assert len(server.asked) == 2
    assert 0 < sum(moment.slept) <= transport.FIRST_WAIT
    assert calls.totals().failed == 1


def test_a_server_that_asks_to_wait_is_waited_for(calls: Calls) -> None:
    with standing_in([Act(status=429, headers={"retry-after": "17"}), GOOD]) as server:
        found, moment = asker(server, calls)
        assert ask(found) == GOOD.text
    assert moment.slept == [17.0]


def test_a_server_that_asks_to_wait_beyond_the_deadline_is_not_waited_for(calls: Calls) -> None:
    with standing_in([Act(status=429, headers={"retry-after": "3600"})]) as server:
        found, moment = asker(server, calls)
        with pytest.raises(NoAnswerError, match="429"):
            ask(found)
    assert moment.slept == [] and len(server.asked) == 1


def test_waits_grow_and_the_deadline_ends_them_whatever_was_tried(calls: Calls) -> None:
    with standing_in([Act(status=500)]) as server:
        found, moment = asker(server, calls)
        with pytest.raises(NoAnswerError):
            ask(found)
    assert sum(moment.slept) < 30
    assert all(later > earlier / 2 for earlier, later in zip(moment.slept, moment.slept[1:], strict=False))
    assert 4 <= len(server.asked) <= 8


def test_a_byte_a_second_ends_at_the_deadline_and_counts_at_its_most(calls: Calls) -> None:
    with standing_in([Act("x", drip=0.1)]) as server:
        found, _ = asker(server, calls, deadline=0.6, prices=(Price(1.0, 10.0),))
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match="within"):
            ask(found)
        assert time.monotonic() - began < 5
    assert calls.totals().money is None and calls.totals().unknown == 1  # unknown, which is not 0
    spent = calls.spent()
    assert spent.tokens == most_tokens(MESSAGES, 50)
    assert spent.money is not None and spent.money > 0


def test_an_endpoint_that_is_down_for_a_minute_loses_nothing(calls: Calls) -> None:
    with standing_in([GOOD]) as server:
        found, moment = asker(server, calls, deadline=200.0)
        endpoint = found._endpoint
        assert endpoint is not None
        real = endpoint.send

        def down(request: Request, seconds: float) -> object:
            if moment.extra < 60:
                raise TransientError("no connection")
            return real(request, seconds)

        endpoint.send = down  # type: ignore[assignment, method-assign]
        assert ask(found) == GOOD.text
    assert 60 <= moment.extra < 200
    assert calls.spent().tokens == 120


def test_an_endpoint_that_stays_away_pauses_the_run_and_then_stops_it(calls: Calls) -> None:
    with standing_in([GOOD]) as server:
        url = server.url
    found, moment = asker(StandIn([]), calls, base_url=url, deadline=2.0)
    found._endpoint = OpenAiEndpoint(url, KEY)  # nobody listens there any more
    failures = breaker.FAILURES + breaker.PAUSES
    for slot in range(failures):
        with pytest.raises(NoAnswerError):
            ask(found, slot)
    with pytest.raises(EndpointError, match="the run so far is kept"):
        ask(found, failures)
    assert sum(each > breaker.PAUSE - 5 for each in moment.slept) == breaker.PAUSES
    assert calls.spent().tokens == 0  # what was never sent is not billed


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (Act(status=401, text=f"Incorrect key {KEY}"), "key is not accepted"),
        (Act(status=404, text="no such model"), "there is no model 'm'"),
        (Act(status=400, text="context length exceeded"), "context length exceeded"),
        (Act(status=400, text="two\n  lines"), "two lines"),
        (Act(status=429, body='{"error": {"message": "x", "code": "insufficient_quota"}}'), "no credit left"),
    ],
)
def test_what_will_not_pass_is_said_in_a_sentence_and_not_tried_again(calls: Calls, act: Act, said: str) -> None:
    with standing_in([act]) as server:
        found, moment = asker(server, calls)
        with pytest.raises(EndpointError, match=said) as caught:
            ask(found)
    assert KEY not in str(caught.value)
    assert len(server.asked) == 1 and moment.slept == []


def test_an_option_that_a_model_does_not_take_is_left_out(calls: Calls) -> None:
    def act(request: dict[str, object]) -> Act:
        for name in ("max_tokens", "temperature"):
            if name in request:
                return Act(status=400, text=f"Unsupported parameter: '{name}'")
        return GOOD

    with standing_in(act) as server:
        found, _ = asker(server, calls)
        assert ask(found) == GOOD.text
        assert ask(found, 1) == GOOD.text
    assert len(server.asked) == 4
    assert server.asked[-1]["max_completion_tokens"] == 50 and "temperature" not in server.asked[-1]


def test_a_call_that_could_pass_a_limit_is_not_sent(calls: Calls) -> None:
    most = most_tokens(MESSAGES, 50)
    with standing_in([GOOD]) as server:
        found, _ = asker(server, calls, most_tokens=most + 119)
        ask(found)  # 120 tokens are used
        with pytest.raises(LimitReachedError):
            ask(found, 1)
        cheap, _ = asker(server, calls, prices=(Price(0.0, 1e6),), most_money=40.0)
        with pytest.raises(LimitReachedError):
            ask(cheap, 2)
    assert len(server.asked) == 1


def test_usage_that_is_not_told_is_unknown_and_counts_at_its_most(calls: Calls) -> None:
    with standing_in([Act("x", usage=None)]) as server:
        found, _ = asker(server, calls, prices=(Price(1.0, 1.0),))
        assert found.ask(Place(1, 0), "m", MESSAGES, 7, found.deadline()).money is None
    assert calls.totals().unknown == 1
    assert calls.spent().tokens == most_tokens(MESSAGES, 50)


@pytest.mark.parametrize(("status", "unknown"), [(429, 0), (500, 1), (504, 1)])
def test_what_a_gateway_gives_up_on_may_be_billed(calls: Calls, status: int, unknown: int) -> None:
    with standing_in([Act(status=status), GOOD]) as server:
        found, _ = asker(server, calls, prices=(Price(1.0, 1.0),))
        ask(found)
    assert calls.totals().unknown == unknown


def test_a_connection_that_never_came_about_is_not_billed() -> None:
    import openai

    endpoint = OpenAiEndpoint("http://127.0.0.1:9/v1", KEY)
    request = Request("m", MESSAGES, 50, 0.8, 7)
    for name, billed in (("ConnectTimeout", False), ("ReadTimeout", True)):
        error = openai.APITimeoutError(None)  # type: ignore[arg-type]
        error.__cause__ = type(name, (Exception,), {})("x")
        explained = endpoint._explained(error, request)
        assert isinstance(explained, TransientError) and explained.billed is billed


def test_the_key_is_in_the_header_and_in_no_file(calls: Calls, tmp_path: Path) -> None:
    with standing_in([Act(status=500, text=f"do not say {KEY}"), Act(f"it is {KEY}")]) as server:
        found, _ = asker(server, calls)
        assert ask(found) == "it is [key]"
        assert server.keys == [f"Bearer {KEY}"] * 2
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_a_key_that_is_a_mere_word_is_not_struck_out_of_replies(calls: Calls) -> None:
    with standing_in([Act("return keys")]) as server:
        found, _ = asker(server, calls)
        found._endpoint = OpenAiEndpoint(server.url, "key")
        assert ask(found) == "return keys"


def test_recorded_replies_are_replayed_without_an_endpoint(calls: Calls, tmp_path: Path) -> None:
    with standing_in([GOOD]) as server:
        found, _ = asker(server, calls, prices=(Price(1.0, 1.0),))
        ask(found)
    (tmp_path / "again").mkdir()
    replay, own = open_recorded(tmp_path), Calls(tmp_path / "again")
    again = Transport(found.settings, own, None, replay=replay)
    assert ask(again) == GOOD.text
    with pytest.raises(NoAnswerError, match="no reply here"):
        ask(again, 1)
    assert own.totals().money == calls.totals().money
    own.close()
    replay.close()


def test_a_folder_without_recorded_replies_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        open_recorded(tmp_path / "nothing")
    sqlite3.connect(tmp_path / "run.sqlite").close()
    Calls(tmp_path).close()
    with pytest.raises(RunError, match="no recorded replies"):
        open_recorded(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://host/v1"},
        {"base_url": "http://"},
        {"base_url": "http://host:port/v1"},
        {"base_url": f"https://me:{KEY}@host/v1"},
        {"base_url": f"https://host/v1?key={KEY}"},
        {"models": ()},
        {"models": ("a", "a")},
        {"models": ("a", "b"), "prices": (Price(1, 1),)},
        {"most_money": 5.0},
        {"most_money": 5.0, "prices": (Price(0, 0),)},
        {"most_tokens": 0},
        {"temperature": float("nan")},
        {"deadline": 0.0},
    ],
)
def test_settings_that_mean_nothing_are_refused_and_keys_are_not_repeated(changes: dict[str, object]) -> None:
    with pytest.raises(EndpointError) as caught:
        LlmSettings(**({"base_url": "http://host/v1", "models": ("m",)} | changes))  # type: ignore[arg-type]
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("text", ["", "1", "a,b", "1,2,3", "-1,2", "nan,1"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(EndpointError):
        parse_price(text)


def test_the_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHECRAFT_LLM_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EndpointError, match="CACHECRAFT_LLM_KEY or OPENAI_API_KEY"):
        key_from_environment()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert key_from_environment() == KEY
