"""Lets policies that CacheCraft did not write decide in the sandbox, apart from the model, the answers and the keys.

What the sandbox stops and what it does not: docs/sandbox.md. Policies that come with CacheCraft run in process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cachecraft.policy.contract import Policy
from cachecraft.policy.features import LayerFeatures
from cachecraft.sandbox import Ask, Choice, Limits, Program, Sandbox, share

SECONDS = 120.0  # a policy's time for one item: a person's policy may be slow, and is not one of thousands
MEMORY = 4 << 30


class Apart:
    """A sandbox that is started when a foreign policy first decides, and its item's arrays in a temporary folder."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._sandbox: Sandbox | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def choose(
        self, layers: Iterable[LayerFeatures], wanted: Sequence[tuple[Policy, tuple[int, ...]]]
    ) -> list[Choice | str]:
        """What policies keep of one item.

        Args:
            layers: The item's layers.
            wanted: Policies and the numbers of entries that they keep per kv head on average.

        Returns:
            For each policy its choice, or the sentence that says what is wrong with it.

        Raises:
            SandboxError: This system cannot confine a process, or the arrays cannot be written.
        """
        if self._sandbox is None:
            self._sandbox = Sandbox(Limits(SECONDS, MEMORY))
            self._folder = Path(tempfile.mkdtemp(prefix="cachecraft-"))
        assert self._folder is not None
        path = self._folder / "item"
        self._sandbox.load("item", share(path, layers))
        found: list[Choice | str] = []
        try:
            for policy, keeps in wanted:
                verdict = self._sandbox.run(Program.of(policy), [Ask("item", keeps)])
                found.append(verdict.choices[0] if verdict.ok else verdict.reason)
        finally:
            self._sandbox.unload("item")
            path.unlink(missing_ok=True)
        return found
