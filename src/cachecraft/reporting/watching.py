"""Serves a run's report on this machine and lets it follow the run. Nothing but the page and its version is served.

The page is made when somebody asks and the run's files have changed, and not more often than leaves the run its speed:
making it takes at most one part in `SHARE` of the time. It listens on the loopback address only and answers only
requests that name it, so that no other site's page can read it through a browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cachecraft.errors import RunError
from cachecraft.reporting.report.page import build_report
from cachecraft.reporting.report.runs import stamp

HOST = "127.0.0.1"
LEAST_SECONDS = 3.0  # between two pages
SHARE = 60  # a page that took one second of processor time is not made again for a minute
NICE = 10  # the run comes first


@dataclass
class LivePage:
    """A page that is made again when its runs have changed.

    Attributes:
        folders: Folders of the runs.
        clock: For pacing, in seconds.
        token: Unlike that of any other watcher, so that a page of an earlier one does not take our pages for its own.
        error: Why the runs could not be read when they had changed last; "" where they could.
    """

    folders: Sequence[Path]
    clock: Callable[[], float] = time.monotonic
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    error: str = ""
    _number: int = 0
    _page: bytes = b""
    _stamp: object = None
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def version(self) -> str:
        """What tells this page from any other."""
        return f"{self.token}-{self._number}"

    def current(self) -> tuple[str, bytes]:
        """The page's version and the page.

        A run that cannot be read at this moment leaves the page as it was; `error` says so.

        Raises:
            RunError: There is no page yet and the run cannot be read.
        """
        with self._lock:
            if self.clock() < self._next:
                return self.version, self._page
            if (seen := stamp(self.folders)) == self._stamp:
                self.error = ""
            else:
                began = time.process_time()
                try:
                    page = build_report(self.folders, version=f"{self.token}-{self._number + 1}")
                except RunError as error:
                    if not self._page:
                        raise
                    self.error = str(error)
                else:
                    self._page, self._stamp, self.error = page.encode(errors="replace"), seen, ""
                    self._number += 1
                self._next = self.clock() + max(LEAST_SECONDS, SHARE * (time.process_time() - began))
            return self.version, self._page


class Server(ThreadingHTTPServer):
    """Answers on the loopback address."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere that would let two servers share a port

    def __init__(self, port: int, page: LivePage) -> None:
        """Bind a port; 0 takes any free one."""
        super().__init__((HOST, port), Handler)
        self.page = page

    @property
    def hosts(self) -> set[str]:
        """How a request may call us."""
        names = {HOST, "localhost"}
        return {f"{name}:{self.server_port}" for name in names} | (names if self.server_port == 80 else set())

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """`/` is the page, `/state` its version; nothing else exists."""

    server: Server
    server_version, sys_version = "cachecraft", ""
    timeout = 30.0  # an idle connection is no reason to keep a thread

    def do_GET(self) -> None:
        """Answer one request."""
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(403, b"This address is not served here.\n")
            return
        if self.path not in ("/", "/state"):
            self._answer(404, b"There is nothing but the run's page, at /.\n")
            return
        try:
            version, page = self.server.page.current()
        except RunError as error:
            self._answer(503, f"{error}\n".encode(errors="replace"))
            return
        if self.path == "/":
            self._answer(200, page, "text/html; charset=utf-8")
        else:
            state = {"version": version, "error": self.server.page.error}
            self._answer(200, json.dumps(state).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        with contextlib.suppress(ConnectionError):  # the reader went away
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("X-Frame-Options", "DENY"),
                ("Referrer-Policy", "no-referrer"),
                ("Cross-Origin-Resource-Policy", "same-origin"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of single requests."""


@contextmanager
def watching(folders: Sequence[Path], port: int) -> Iterator[Server]:
    """A server for the runs' page that has the page ready and waits for `serve_forever`.

    Args:
        folders: Folders of runs.
        port: 0 for any free one.

    Raises:
        RunError: A folder is no run, or the port cannot be had.
    """
    if not 0 <= port <= 65535:
        raise RunError(f"Port {port} does not exist; give one from 1024 to 65535, or 0 for any free one.")
    page = LivePage(folders)
    page.current()
    try:
        server = Server(port, page)
    except OSError as error:
        raise RunError(
            f"Port {port} cannot be used ({error.strerror}); give another with --port, or 0 for any free one."
        ) from error
    with server:
        yield server


def step_back() -> None:
    """Let a run that goes on beside this process have the processor first."""
    with contextlib.suppress(AttributeError, OSError):  # not every system can
        os.nice(NICE)
