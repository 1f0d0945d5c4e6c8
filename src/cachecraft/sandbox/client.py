"""The trusted side's handle on one server process: start it, talk to it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from cachecraft.sandbox.array_file import path_descriptor
from cachecraft.sandbox.shared import SharedItem
from cachecraft.sandbox.verdict import SandboxError
from cachecraft.sandbox.wire import WireError, harmless, receive, send

_SECONDS_TO_START = 180.0
_SECONDS_TO_LOAD = 60.0
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from cachecraft.sandbox.server import main; main(int(sys.argv[2]))"
)
# All that a server is told of the environment: no keys, no tokens, no home.
_THREADS = tuple(f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"))
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def clean_environment() -> dict[str, str]:
    """The environment of a server and so of its candidates."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    fixed = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}
    return passed | fixed | dict.fromkeys(_THREADS, "1")


class ServerProcess:
    """A running server; `missing` says what the system does not offer."""

    def __init__(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            SandboxError: It does not start.
        """
        ours, theirs = socket.socketpair()
        paths = [path for path in sys.path if os.path.isabs(path)]
        self._errors = sink()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-c", _START, json.dumps(paths), str(theirs.fileno())],
                env=clean_environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                cwd="/",
                start_new_session=True,
            )
        self._channel = ours
        try:
            self.missing: list[str] = self.receive(_SECONDS_TO_START)["missing"]
        except (WireError, TimeoutError) as error:
            self.end()
            self._errors.seek(0)
            told = harmless(self._errors.read()[-2000:].decode(errors="replace"), 2000) or str(error)
            raise SandboxError(
                f"The sandbox's server does not start: {told[-600:]}; run candidates elsewhere."
            ) from error

    @property
    def id(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message; WireError if the server is gone."""
        send(self._channel, message, files)

    def receive(self, seconds: float) -> dict[str, Any]:
        """Its answer; WireError if it is gone, TimeoutError if it takes longer."""
        self._channel.settimeout(seconds)
        message, files = receive(self._channel)
        for file in files:
            os.close(file)
        return message

    def load(self, name: str, item: SharedItem) -> None:
        """Have it map an item's files.

        Raises:
            SandboxError: It cannot read them.
            WireError: It is gone.
        """
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path_descriptor(path)) for path in item.files]
            self.ask({"do": "load", "item": name}, files)
            answer = self.receive(_SECONDS_TO_LOAD)
        if "refused" in answer:
            raise SandboxError(answer["refused"])

    def unload(self, name: str) -> None:
        """Have it forget an item; WireError if it is gone."""
        self.ask({"do": "unload", "item": name})
        self.receive(_SECONDS_TO_LOAD)

    def wait(self, seconds: float) -> tuple[int | None, float]:
        """Its exit code, negative for a signal, or None if it is still there after this time; and how long it took."""
        began = time.monotonic()
        try:
            code: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        return code, time.monotonic() - began

    def end(self) -> None:
        """End it and its group; a candidate of it ends with it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._channel.close()
        self._errors.close()


def content(file: IO[bytes]) -> bytes:
    """All of a file, whoever moved its position."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def sink() -> IO[bytes]:
    """A file without a name, which only open descriptors reach."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("cachecraft", os.MFD_CLOEXEC), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
