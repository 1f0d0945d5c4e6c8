"""Where an evaluation's time goes: seconds by phase, measured where the work is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of wall time by phase; time in an inner phase does not count for the outer one."""

    def __init__(self) -> None:
        """Start with no time in any phase."""
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]  # seconds spent in phases inside of each open one

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside the block to `name`."""
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner.pop()
            self._inner[-1] += spent
