"""The breaker: it spares an endpoint that does not answer, and keeps a silent model from holding up the others.

A model that failed some times in a row is left alone for a while and then tried with one call. While other models
answer, its slots stay empty meanwhile; when nobody does, the run itself waits, and stops after some such pauses, to be
gone on with later. A wait that a server asked for beyond a proposal's deadline is waited for in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cachecraft.evolution.llm.settings import EndpointError

FAILURES = 3  # proposals of one model in a row without an answer that open the breaker
PAUSE, PAUSES = 60.0, 10  # seconds of a pause, and pauses of the run after which it stops
LONGEST_PAUSE = 3600.0  # seconds that a server's own wish is followed for


class NoAnswerError(Exception):
    """The endpoint gave no answer before the deadline, is not asked for now, or the replayed run has none here."""


@dataclass
class _Silence:
    """What is known of a model since its last answer: when it failed first, how often, when to ask again, and why."""

    since: float
    failures: int = 0
    until: float = -math.inf
    why: str = ""


class Breaker:
    """Says whether a model may be asked, and waits where that helps."""

    def __init__(
        self, address: str, clock: Callable[[], float], sleep: Callable[[float], None], say: Callable[[str], None]
    ) -> None:
        """Begin with every model trusted.

        Args:
            address: The endpoint's, for messages.
            clock: Seconds that only grow.
            sleep: Waits so many seconds.
            say: Told in a line when the run waits.
        """
        self._address, self._clock, self._sleep, self._say = address, clock, sleep, say
        self._silent: dict[str, _Silence] = {}
        self._answered = -math.inf  # when any model answered last
        self._pauses = 0

    def enter(self, model: str) -> bool:
        """Before a proposal's call: wait if need be.

        Returns:
            Whether the model is on trial, so that one call must do.

        Raises:
            NoAnswerError: The model is silent while others answer, and its pause is not over.
            EndpointError: Nobody has answered for all the pauses that there are.
        """
        silence = self._silent.get(model)
        if silence is None or silence.until == -math.inf:
            return False
        left = silence.until - self._clock()
        if left > 0 and self._answered > silence.since:
            raise NoAnswerError(f"{model} is left alone for {left:.0f} more seconds")
        if self._answered <= silence.since:
            self._pause(left, silence.why)
        return True

    def _pause(self, seconds: float, why: str) -> None:
        if self._pauses >= PAUSES:
            minutes = (self._clock() - min(each.since for each in self._silent.values())) / 60
            raise EndpointError(
                f"{self._address} gave no answer for {minutes:.0f} minutes; the run so far is kept, and the same "
                "command goes on from there."
            )
        self._pauses += 1
        if seconds > 0:
            self._say(f"The endpoint {why}; trying again in {seconds:.0f} seconds ({self._pauses} of {PAUSES}).")
            self._sleep(seconds)

    def failed(self, model: str, wait: float | None) -> None:
        """A proposal's call brought no answer; `wait` is what the server asked for and the deadline did not allow."""
        now = self._clock()
        silence = self._silent.setdefault(model, _Silence(now))
        silence.failures += 1
        if silence.failures >= FAILURES:
            silence.until, silence.why = now + PAUSE, "does not answer"
        if wait is not None and now + wait > silence.until:
            silence.until, silence.why = now + min(wait, LONGEST_PAUSE), "asks to wait"

    def answered(self, model: str) -> None:
        """A model answered, be it that it refused."""
        self._silent.pop(model, None)
        self._answered, self._pauses = self._clock(), 0
