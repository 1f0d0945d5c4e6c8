"""The peer's environment and process: makes the one if it is missing, starts the other, asks it for cells."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecraft.errors import CacheCraftError

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parent / ".venv-kvpress"
REQUIREMENTS = ("torch==2.13.0", "kvpress==0.5.5", "transformers<5.3")


class PeerError(CacheCraftError):
    """The peer could not be installed or stopped answering; one sentence."""


@dataclass(frozen=True)
class PeerCell:
    """What the peer did with one cell.

    Attributes:
        seconds, cpu_seconds: Wall and CPU time of prefill, compression and answer; the model was loaded before.
        ids: Its new tokens, a stop token included.
        answer: Their text.
    """

    seconds: float
    cpu_seconds: float
    ids: list[int]
    answer: str


def peer_python(given: Path | None) -> Path:
    """The peer's Python: the one given, or that of `.venv-kvpress`, which is made when there is none.

    Raises:
        PeerError: It cannot be made, or the one given does not exist.
    """
    if given is not None:
        if not given.is_file():
            raise PeerError(f"There is no Python at {given}; leave --peer-python out to have one made.")
        return given.absolute()  # not resolved: an environment's Python is a link, and its place matters
    python = ENVIRONMENT / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    finished = ENVIRONMENT / ".installed"
    if finished.is_file():
        return python
    print(f"Making {ENVIRONMENT.name} with {', '.join(REQUIREMENTS)} (once, a few minutes) ...", flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["-c", str(HERE / "constraints-kvpress.txt"), *REQUIREMENTS]
    for command in ([sys.executable, "-m", "venv", str(ENVIRONMENT)], install):
        if subprocess.run(command, check=False).returncode != 0:
            raise PeerError(f"The peer's environment could not be made: `{' '.join(command)}` failed.")
    finished.touch()
    return python


def peer_ratio(tokens: int, keep: int) -> float:
    """The compression ratio at which kvpress keeps exactly `keep` of `tokens` entries: it truncates, so aim midway."""
    if keep >= tokens:
        return 0.0
    ratio = 1 - (keep + 0.5) / tokens
    kept = max(1, int(tokens * (1 - ratio)))
    if kept != keep or not math.isfinite(ratio):
        raise PeerError(f"No ratio makes the peer keep {keep} of {tokens} entries; choose another budget.")
    return ratio


class PeerProcess:
    """A running peer; to be used in a `with` block, which ends it."""

    def __init__(self, python: Path, log: Path) -> None:
        """Start it; what it prints goes to the file `log`."""
        self._log = log
        self._error = log.open("w")
        self._process = subprocess.Popen(
            [str(python), str(HERE / "kvpress_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error,
            text=True,
        )

    def __enter__(self) -> PeerProcess:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._error.close()

    def open(self, model: Path, samples: Path, threads: int) -> None:
        """Load model and samples."""
        self._ask({"do": "open", "model": str(model), "samples": str(samples), "threads": threads})

    def cell(
        self,
        press: str,
        ratio: float,
        sample: int,
        record: Path | None = None,
        *,
        blend: float | None = None,
        noise: Path | None = None,
    ) -> PeerCell:
        """Run one cell.

        Args:
            press: Our name of the policy; `chunks(NAME)` for its ChunkKV.
            ratio: Its compression ratio.
            sample: Number of the sample.
            record: Where to write which entries it keeps and how it scored them; then the time means nothing.
            blend: Weight of the leverage in `compactor`, which else is the ratio.
            noise: A file of normal draws, (L, ...), that it uses instead of its own, one for each layer.
        """
        request = {"do": "cell", "press": press, "ratio": ratio, "sample": sample, "blend": blend}
        files = {"record": record, "noise": noise}
        return PeerCell(**self._ask(request | {key: file and str(file) for key, file in files.items()}))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            lines = self._log.read_text().strip().splitlines()
            raise PeerError(f"The peer stopped: {lines[-1] if lines else 'no reason given'} (see {self._log}).")
        reply: dict[str, Any] = json.loads(line)
        return reply
