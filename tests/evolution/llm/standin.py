"""A small HTTP server that plays an OpenAI-compatible endpoint: each call takes the next act of a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Act:
    """What the server does with one call: a status, headers and a body, in time or a byte at a time."""

    text: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    finish: str = "stop"
    refusal: str | None = None
    usage: tuple[int, int] | None = (100, 20)
    drip: float = 0.0
    cut: bool = False

    def payload(self, model: str) -> bytes:
        if self.body is not None:
            return self.body.encode()
        if self.status != 200:
            return json.dumps({"error": {"message": self.text or "wrong", "type": "x", "code": None}}).encode()
        message = {"role": "assistant", "content": self.text, "refusal": self.refusal}
        found: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": model}
        found["choices"] = [{"index": 0, "message": message, "finish_reason": self.finish}]
        if self.usage:
            found["usage"] = {"prompt_tokens": self.usage[0], "completion_tokens": self.usage[1], "total_tokens": 0}
        return json.dumps(found).encode()


Script = Sequence[Act] | Callable[[dict[str, Any]], Act]


class StandIn:
    """What a running server was asked."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self._script = script

    def act(self, request: dict[str, Any]) -> Act:
        self.asked.append(request)
        if callable(self._script):
            return self._script(request)
        return self._script[min(len(self.asked), len(self._script)) - 1]


@contextmanager
def standing_in(script: Script) -> Iterator[StandIn]:
    """Run a server; its last act repeats."""
    played = StandIn(script)
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            played.keys.append(self.headers.get("authorization", ""))
            act = played.act(request | {"path": self.path})
            payload = act.payload(request["model"])
            self.send_response(act.status)
            for name, value in ({"content-type": "application/json"} | act.headers).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            if act.cut:
                self.wfile.write(payload[:10])
                self.wfile.flush()
                self.connection.close()
                return
            for byte in payload if act.drip else ():
                if closing.is_set():
                    return
                try:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(act.drip)
            if not act.drip:
                self.wfile.write(payload)

        def log_message(self, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    played.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield played
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
