"""A process that begins where the tests are, with everything imported: for what a kill at any moment must not break."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Forked:
    """A child of this process, with the part of `subprocess.Popen` that the tests need."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)


def fork(run: Callable[[], object], log: Path) -> Forked:
    """Run something in a child process that ends with it; what it prints goes to a file."""
    if (pid := os.fork()) != 0:
        return Forked(pid)
    code = 1
    try:
        with log.open("ab") as told:
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
        run()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
