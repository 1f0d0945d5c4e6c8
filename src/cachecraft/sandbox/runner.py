"""`Sandbox`: run candidates apart from everything that is worth protecting, and say how each fared.

The server and its candidates are in server.py and candidate.py, the rules of their processes in confinement.py and
system_calls.py, the reading of what comes back in judging.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from cachecraft.sandbox.client import ServerProcess, content, sink
from cachecraft.sandbox.judging import Finished, Request, judge, probed
from cachecraft.sandbox.program import Program
from cachecraft.sandbox.shared import SharedItem
from cachecraft.sandbox.verdict import Ask, Limits, SandboxError, State, Verdict, packed_size
from cachecraft.sandbox.wire import WireError

_GRACE = 10.0  # seconds for the server to say that a deadline has passed
_SECONDS_TO_PROBE = 60.0
_ROOM_PER_ASK = 4096  # bytes of an answer beside its masks


class Sandbox:
    """Runs candidates, one process each, forked from one warmed server.

    Calls wait for each other; several workers take a sandbox each and share the items through their files. A server
    that dies is replaced, with its items, and the candidate that it was running is asked once more.

        with Sandbox(Limits(seconds=5)) as sandbox:
            sandbox.load("item-0", share(path, layers))
            verdict = sandbox.run(Program("mine", text), [Ask("item-0", (250, 125))])

    Attributes:
        limits: What each run may use where nothing else is said.
        fork: Whether candidates are forked; elsewhere than on Linux each gets a server of its own, which takes seconds.
        missing: What this system does not offer, a few words each, known once started.
    """

    def __init__(self, limits: Limits | None = None, *, fork: bool | None = None, filter_calls: bool = True) -> None:
        """Prepare; `start` or the first run starts the server.

        Args:
            limits: What each run may use.
            fork: Fork candidates; by default on Linux only, since other systems' libraries do not bear it.
            filter_calls: Filter system calls where that is possible; turned off only to test the other walls.
        """
        self.limits = limits or Limits()
        self.fork = sys.platform == "linux" if fork is None else fork
        self.missing: tuple[str, ...] = ()
        self._filter = filter_calls
        self._items: dict[str, SharedItem] = {}
        self._server: ServerProcess | None = None
        self._probed = False
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and try a run that does nothing; only the first call does something.

        Raises:
            SandboxError: This system cannot confine a process.
        """
        if os.name != "posix":
            raise SandboxError(f"Candidates cannot be confined on {sys.platform}; use Linux, macOS or WSL.")
        with self._lock:
            if not self._probed:
                missing = self._started().missing
                limits = Limits(_SECONDS_TO_PROBE, self.limits.memory_bytes, self.limits.output_bytes)
                missing += probed(self._finished(Request(Program("probe", ""), "probe"), limits))
                self.missing, self._probed = tuple(missing), True

    def close(self) -> None:
        """End the server and with it whatever runs in it; items are remembered."""
        with self._lock:
            if self._server is not None:
                self._server.end()
                self._server = None

    @property
    def server_id(self) -> int | None:
        """Process id of the server, if one runs."""
        return None if self._server is None else self._server.id

    def load(self, name: str, item: SharedItem) -> None:
        """Offer an item to candidates under a name; one of that name is replaced.

        Raises:
            SandboxError: The server cannot read its files.
        """
        with self._lock:
            self._items[name] = item
            if self._server is not None:
                with self._replaced_if_gone():
                    self._server.load(name, item)

    def unload(self, name: str) -> None:
        """Forget an item."""
        with self._lock:
            self._items.pop(name, None)
            if self._server is not None:
                with self._replaced_if_gone():
                    self._server.unload(name)

    def run(self, program: Program, asks: Sequence[Ask], *, seconds: float | None = None) -> Verdict:
        """Ask a candidate what it keeps of items.

        Args:
            program: The candidate; its text runs in its own process only.
            asks: Items and budgets; one process answers them in this order.
            seconds: Deadline, instead of the limits'.

        Raises:
            SandboxError: An item was not loaded, or no server can be started.
        """
        for ask in asks:
            if ask.item not in self._items:
                raise SandboxError(f"The item {ask.item!r} was not loaded; load it before asking about it.")
        return self._judged(Request(program, "choose", tuple(asks)), seconds)

    def check(self, program: Program, *, seconds: float | None = None) -> Verdict:
        """Try a candidate on synthetic layers, as `cachecraft check` does, but in a process of its own."""
        return self._judged(Request(program, "check"), seconds)

    def _judged(self, request: Request, seconds: float | None) -> Verdict:
        limits = Limits(seconds or self.limits.seconds, self.limits.memory_bytes, self.limits.output_bytes)
        with self._lock:
            self.start()
            for _ in range(2):  # a server may be killed by anyone: only a candidate that outlives none is to blame
                try:
                    return judge(request, self._items, limits, self._finished(request, limits))
                except WireError:
                    self.close()
        return Verdict(
            State.CRASHED,
            f"Policy {request.program.name} was running when the sandbox's server died, twice in a row; it must not "
            "reach other processes.",
        )

    def _finished(self, request: Request, limits: Limits) -> Finished:
        """Run a candidate to its end; WireError if the server died meanwhile."""
        server = self._started()
        room = sum(len(ask.keeps) * packed_size(self._items[ask.item].shape) + _ROOM_PER_ASK for ask in request.asks)
        message = {
            "do": "run",
            "fork": self.fork,
            "filter": self._filter,
            "program": request.program.to_json(),
            "work": request.work,
            "asks": [{"item": ask.item, "keeps": ask.keeps} for ask in request.asks],
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": room + limits.output_bytes,
        }
        with sink() as answer, sink() as printed:
            try:
                server.ask(message, [answer.fileno(), printed.fileno()])
                end = self._forked(server, limits.seconds) if self.fork else self._alone(server, limits.seconds)
            except BaseException:
                self.close()  # it may still be at work on this: no later answer must be taken for another's
                raise
            return Finished(answer=content(answer), printed=content(printed), **end)

    def _forked(self, server: ServerProcess, seconds: float) -> dict[str, Any]:
        try:
            return server.receive(seconds + _GRACE)
        except TimeoutError:
            self.close()
            return {"exit": None, "late": True, "seconds": seconds + _GRACE, "cpu_seconds": 0.0}

    def _alone(self, server: ServerProcess, seconds: float) -> dict[str, Any]:
        """The server has become the candidate."""
        code, waited = server.wait(seconds)
        self.close()
        return {"exit": code, "late": code is None, "seconds": waited, "cpu_seconds": 0.0}

    def _started(self) -> ServerProcess:
        if self._server is None:
            server = ServerProcess()
            try:
                for name, item in self._items.items():
                    server.load(name, item)
            except BaseException:
                server.end()
                raise
            self._server = server
        return self._server

    @contextlib.contextmanager
    def _replaced_if_gone(self) -> Iterator[None]:
        try:
            yield
        except WireError:
            self.close()
            self._started()
