"""The server: one warmed, single-threaded process that forks a candidate for each request and sees it to its end.

It is started with a clean environment, holds mapped arrays and no secrets, and ends when the process that started it
does. It runs no candidate itself, but where forking is not safe it is told to become one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from cachecraft.sandbox.candidate import become_candidate
from cachecraft.sandbox.confinement import adopt_orphans, children, cut_network
from cachecraft.sandbox.shared import SharedItem
from cachecraft.sandbox.verdict import SandboxError
from cachecraft.sandbox.warming import settle, warm
from cachecraft.sandbox.wire import WireError, receive, send

_MOST_SECONDS_TO_BURY = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0


class Server:
    """Serves one trusted process over one socket until either ends."""

    def __init__(self, channel: socket.socket, *, root: bool) -> None:
        self._channel, self._root = channel, root
        self._items: dict[str, SharedItem] = {}
        self._parent = os.getppid()
        # A child's end wakes the wait for messages and deadlines, without threads.
        self._woken, waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def serve(self, missing: Sequence[str]) -> None:
        """Say that it is ready, then answer until nobody asks."""
        send(self._channel, {"ready": True, "missing": list(missing)})
        while True:
            # The socket says when the other side has ended, unless a fork of it still holds the other end.
            while not select.select([self._channel], [], [], _SECONDS_BETWEEN_LOOKS)[0]:
                self._look_for_parent()
            message, files = receive(self._channel)
            try:
                send(self._channel, self._answer(message, files))
            finally:
                for file in files:
                    os.close(file)

    def _look_for_parent(self) -> None:
        if os.getppid() != self._parent:
            raise WireError("the other side has ended")

    def _answer(self, message: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
        match message["do"]:
            case "load":
                try:
                    self._items[message["item"]] = SharedItem(list(files))
                except SandboxError as error:
                    return {"refused": str(error)}
            case "unload":
                self._items.pop(message["item"], None)
            case "run":
                if not message["fork"]:
                    become_candidate(message, files, self._items, parent=None, root=self._root)
                return self._run(message, files)
        return {"done": True}

    def _run(self, request: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
        """Fork a candidate and wait for its end, its deadline or the end of whoever asked."""
        began, own = time.monotonic(), os.getpid()
        candidate = os.fork()
        if candidate == 0:
            signal.set_wakeup_fd(-1)
            become_candidate(request, files, self._items, parent=own, root=self._root)
        late, watched = False, [self._channel.fileno(), self._woken]
        while True:
            done, status, usage = os.wait4(candidate, os.WNOHANG)
            if done:
                break
            left = began + request["seconds"] - time.monotonic()
            if left <= 0 and not late:
                late = True
                _kill(candidate)
            patience = min(max(left, 0.0), _SECONDS_BETWEEN_LOOKS) if not late else _SECONDS_BETWEEN_LOOKS
            ready, _, _ = select.select(watched, [], [], patience)
            try:
                self._look_for_parent()
                if watched[0] in ready:  # nobody sends while a candidate runs
                    raise WireError("the other side has ended")
            except WireError:
                _kill(candidate)
                raise
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        seconds = time.monotonic() - began
        bury_the_rest(candidate)
        return {
            "exit": os.waitstatus_to_exitcode(status),
            "late": late,
            "seconds": seconds,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
        }


def _kill(candidate: int) -> None:
    """The candidate with its group; it may not have one yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(candidate, signal.SIGKILL)


def bury_the_rest(group: int) -> None:
    """End whatever a candidate left behind, in its group or out of it: its orphans are this process's children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    give_up = time.monotonic() + _MOST_SECONDS_TO_BURY
    while time.monotonic() < give_up:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return  # there are none
        for child in children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def main(channel: int) -> None:
    """Entry point of the server process; `channel` is the number of its socket."""
    warm()
    root = os.geteuid() == 0  # in a user namespace the system would say something else
    missing = [reason] if (reason := cut_network()) else []
    adopt_orphans()
    settle()
    if os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) != 1:
        sys.exit("the warmed process has several threads and cannot fork safely")
    with contextlib.suppress(WireError):
        Server(socket.socket(fileno=channel), root=root).serve(missing)
