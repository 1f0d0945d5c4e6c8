"""The largest resident size of this process while a block runs."""

from __future__ import annotations

import threading
import time

import psutil


class PeakMemory:
    """The largest resident size of this process inside a `with` block, looked at every few milliseconds."""

    def __init__(self, every: float = 0.005) -> None:
        """Look every `every` seconds."""
        self._every, self._stop = every, threading.Event()
        self._process = psutil.Process()
        self.before = self.peak = 0

    def __enter__(self) -> PeakMemory:
        """Start looking."""
        self.before = self.peak = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.peak = max(self.peak, self._process.memory_info().rss)
            time.sleep(self._every)
