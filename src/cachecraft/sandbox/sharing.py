"""Work that several sandboxes share: each takes the next piece as soon as it is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cachecraft.sandbox.runner import Sandbox

Piece = TypeVar("Piece")
Done = TypeVar("Done")


def shared_out(
    sandboxes: Sequence[Sandbox], pieces: Sequence[Piece], work: Callable[[Sandbox, Piece], Done]
) -> Iterator[Done]:
    """What the work makes of each piece, in order, whichever sandbox did it; a single one works in this thread."""
    free = list(sandboxes)

    def one(piece: Piece) -> Done:
        sandbox = free.pop()
        try:
            return work(sandbox, piece)
        finally:
            free.append(sandbox)

    if len(free) == 1:
        yield from map(one, pieces)
        return
    with ThreadPoolExecutor(len(free)) as pool:
        yield from pool.map(one, pieces)
