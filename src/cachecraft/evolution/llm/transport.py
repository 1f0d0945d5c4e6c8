"""What stands between a proposer and an endpoint: the one place that retries, waits, counts and limits.

For a proposal there is one deadline, whatever is tried in it. Models that do not answer are the breaker's business
(breaker.py). A call that could pass a limit is not sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachecraft.evolution.llm.breaker import Breaker, NoAnswerError
from cachecraft.evolution.llm.calls import Calls, Message, Most, Place, Recorded, Totals, prompt_id
from cachecraft.evolution.llm.endpoint import Endpoint, Request, TransientError, UnsupportedError, most_tokens
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, RefusedCallError

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds between tries of one call


class LimitReachedError(Exception):
    """The next call could pass the run's limit of tokens or money; nothing was sent."""


@dataclass
class Deadline:
    """When a proposal's calls must be over."""

    clock: Callable[[], float]
    end: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - self.clock()


class Transport:
    """Asks models for replies, or finds the recorded ones.

    Attributes:
        settings: Limits and models.
        calls: Where calls are recorded.
        limited: Whether a call was not sent because it could pass a limit.
    """

    def __init__(
        self,
        settings: LlmSettings,
        calls: Calls,
        endpoint: Endpoint | None,
        *,
        replay: Calls | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Stand ready.

        Args:
            settings: Limits and models.
            calls: Where calls are recorded.
            endpoint: Who answers; None where only recorded replies are used.
            replay: Calls of another run whose replies are used instead of asking.
            sleep: Waits so many seconds.
            clock: Seconds that only grow.
            say: Told in a line when the run waits for the endpoint.
        """
        self.settings, self.calls = settings, calls
        self._endpoint, self._replay = endpoint, replay
        self._sleep, self._clock = sleep, clock
        self._breaker = Breaker(settings.base_url, clock, sleep, say)
        self.limited = False
        self._chance = random.Random()  # only spreads waits in time; nothing that is proposed depends on it

    @property
    def totals(self) -> Totals:
        """What all calls came to."""
        return self.calls.totals()

    def rounds(self, generation: int) -> int:
        """How many tries at a batch are recorded, here or in the replayed run."""
        recorded = [self.calls, self._replay] if self._replay is not None else [self.calls]
        return max(each.rounds(generation) for each in recorded)

    def deadline(self) -> Deadline:
        """For a proposal that begins now."""
        return Deadline(self._clock, self._clock() + self.settings.deadline)

    def ask(self, place: Place, model: str, messages: Sequence[Message], seed: int, deadline: Deadline) -> Recorded:
        """A model's reply: the recorded one where there is one, else the endpoint's.

        Args:
            place: Where in the run it is asked for.
            model: Which model.
            messages: The prompt.
            seed: What the model should draw by.
            deadline: The proposal's.

        Raises:
            NoAnswerError: There is none before the deadline, the model is silent, or the replayed run has none.
            LimitReachedError: The call could pass a limit.
            RefusedCallError: The endpoint does not take this call.
            EndpointError: The endpoint cannot be used, or has been down for too long.
        """
        known = self.calls.find(place, model, None if self._replay else prompt_id(messages))
        if known is not None:
            return known
        if self._replay is not None:
            return self._replayed(self._replay, place, model, messages)
        if self._endpoint is None:
            raise NoAnswerError("there is no endpoint")
        before = self._clock()
        trial = self._breaker.enter(model)
        deadline.end += self._clock() - before  # a pause is no part of the proposal's time
        request = Request(model, tuple(messages), self.settings.reply_tokens, self.settings.temperature, seed)
        return self._tried(self._endpoint, place, request, deadline, trial)

    def _tried(self, endpoint: Endpoint, place: Place, request: Request, deadline: Deadline, trial: bool) -> Recorded:
        """Send a call until it is answered or the deadline is near; on trial, once."""
        wait, said = FIRST_WAIT, "no time"
        asked: float | None = None
        while (left := deadline.left) > 0:
            most = self._allowed(request)
            number = self.calls.begin(place, request.model, request.messages, most)
            began = self._clock()
            try:
                reply = endpoint.send(request, left)
            except UnsupportedError as error:
                self.calls.failed(number, str(error), billed=False, seconds=self._clock() - began)
                continue
            except TransientError as error:
                said = str(error)
                self.calls.failed(number, said, billed=error.billed, seconds=self._clock() - began)
                pause = max(error.wait or 0.0, wait * self._chance.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT)
                if trial or pause >= deadline.left:
                    asked = error.wait
                    break
                self._sleep(pause)
            except EndpointError as error:
                self.calls.failed(number, str(error), billed=False, seconds=self._clock() - began)
                if isinstance(error, RefusedCallError):
                    self._breaker.answered(request.model)
                raise
            else:
                price, known = self.settings.price(request.model), (reply.tokens_in, reply.tokens_out)
                tokens = [each for each in known if each is not None]
                money = price.of(*tokens) if price is not None and len(tokens) == 2 else None
                self.calls.answered(number, reply, money, self._clock() - began)
                self._breaker.answered(request.model)
                return Recorded(number, reply, money)
        self._breaker.failed(request.model, asked)
        raise NoAnswerError(said)

    def _allowed(self, request: Request) -> Most:
        """The most that a call can use; LimitReachedError if that is too much."""
        settings, price = self.settings, self.settings.price(request.model)
        tokens = most_tokens(request.messages, request.reply_tokens)
        money = None if price is None else price.of(tokens - request.reply_tokens, request.reply_tokens)
        spent = self.calls.spent()
        if settings.most_tokens is not None and spent.tokens + tokens > settings.most_tokens:
            self.limited = True
            raise LimitReachedError(f"{spent.tokens} of {settings.most_tokens} tokens are used")
        if settings.most_money is not None and spent.money is not None:
            assert money is not None
            if spent.money + money > settings.most_money:
                self.limited = True
                raise LimitReachedError(f"${spent.money:.4f} of ${settings.most_money:.4f} are spent")
        return Most(tokens, money)

    def _replayed(self, replay: Calls, place: Place, model: str, messages: Sequence[Message]) -> Recorded:
        """The reply of the replayed run at this place, recorded here as if it had been asked for."""
        found = replay.find(place, model, None)
        if found is None:
            error = replay.failure(place, model)
            if error is not None and self.calls.failure(place, model) is None:  # who asked in vain counts here too
                number = self.calls.begin(place, model, messages, Most(0, 0.0))
                self.calls.failed(number, error, billed=False, seconds=0.0)
            raise NoAnswerError("the replayed run has no reply here")
        number = self.calls.begin(place, model, messages, Most(0, 0.0))
        self.calls.answered(number, found.reply, found.money, 0.0)
        return Recorded(number, found.reply, found.money)
