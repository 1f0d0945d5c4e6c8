"""What the sandbox is asked and what it answers: states with reasons, never numbers that stand for a failure.

Plain frozen values; nothing here runs a program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from cachecraft.errors import CacheCraftError


class SandboxError(CacheCraftError):
    """The sandbox itself cannot be started or used as asked; never the fault of a candidate."""


class State(StrEnum):
    """How a candidate fared; everything but `OK` is a rejection.

    Attributes:
        OK: It kept every rule that was checked.
        REFUSED: The static gate did not let it run.
        BROKEN: Its result breaks the contract; the verdict's rule says which part.
        RAISED: Its own code raised.
        WROTE_FEATURES: It wrote into what it was given to read.
        NONDETERMINISTIC: The same input gave two results.
        STATE_LEAK: A result depends on what it was asked before.
        TIMEOUT: It was not done at its deadline.
        MEMORY: It asked for more memory than it may have.
        OUTPUT: It printed or wrote more than it may.
        FORBIDDEN: It asked the system for something other than memory and time.
        CRASHED: Its process died or ended early.
        MALFORMED: What it handed over is no answer.
    """

    OK = "ok"
    REFUSED = "refused"
    BROKEN = "broken_contract"
    RAISED = "raised"
    WROTE_FEATURES = "wrote_features"
    NONDETERMINISTIC = "nondeterministic"
    STATE_LEAK = "state_leak"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output_limit"
    FORBIDDEN = "forbidden_call"
    CRASHED = "crashed"
    MALFORMED = "malformed_answer"


@dataclass(frozen=True)
class Limits:
    """What one candidate may use in one run.

    Attributes:
        seconds: Wall-clock time; its processor time is limited to a little more.
        memory_bytes: Memory beyond what the warmed process holds.
        output_bytes: What it may print, and what its answer may exceed its proper size by.
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if not (0 < self.seconds < float("inf") and self.memory_bytes > 0 and self.output_bytes > 0):
            raise SandboxError(f"Limits of {self} mean nothing; give finite numbers above 0.")


@dataclass(frozen=True)
class Ask:
    """One question to a candidate: what does it keep of an item at these budgets?

    Attributes:
        item: Name under which the item was loaded.
        keeps: Entries kept per kv head on average, one number for each budget.
    """

    item: str
    keeps: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """What a candidate keeps of one item: checked counts, one set of masks for each budget.

    Attributes:
        ask: The question.
        shape: (L, G, T): layers, kv heads, entries.
        bits: For each budget the masks of all layers, each row of T bits packed into bytes, most significant first.
        read_keep: Whether scores depend on the budget, by the candidate's own account.
        forced: For each budget, whether protection left nothing to the scorer in every layer, by its own account.
        seconds: Wall-clock time of this item, by its own account.
        computed: Heavy features that it had to compute because the item does not bring them, by its own account.
        notes: For each budget, what of its allocation had to give way, by its own account.
    """

    ask: Ask
    shape: tuple[int, int, int]
    bits: tuple[bytes, ...]
    read_keep: bool
    forced: tuple[bool, ...]
    seconds: float
    computed: tuple[str, ...]
    notes: tuple[str, ...]

    def masks(self, budget: int) -> list[Tensor]:
        """The masks of the budget with this index: (G, T) bool for each layer."""
        return list(unpacked(self.bits[budget], self.shape).unbind())


def packed_size(shape: tuple[int, int, int]) -> int:
    """Bytes of the packed masks of one budget."""
    layers, heads, tokens = shape
    return layers * heads * -(-tokens // 8)


def packed(masks: Tensor) -> bytes:
    """Pack (L, G, T) bool masks; each row begins with a new byte."""
    return np.packbits(masks.numpy(), axis=-1).tobytes()


def unpacked(bits: bytes, shape: tuple[int, int, int]) -> Tensor:
    """(L, G, T) bool masks from their packed bytes."""
    layers, heads, tokens = shape
    rows = np.frombuffer(bits, dtype=np.uint8).reshape(layers, heads, -1)
    return torch.from_numpy(np.unpackbits(rows, axis=-1, count=tokens).view(np.bool_))


@dataclass(frozen=True, eq=False)
class Verdict:
    """How a candidate fared.

    Attributes:
        state: The state.
        reason: One sentence that says what is wrong; "" when nothing is.
        rule: Class name of the broken rule where `state` is `State.BROKEN` or one of its relatives, else "".
        choices: What it keeps, one for each question; empty unless `state` is `State.OK`.
        seconds: Wall-clock time from the fork to its end, measured outside the candidate.
        cpu_seconds: Processor time, measured by the system; 0 where it cannot be.
        printed: The beginning of what it printed, made harmless.
    """

    state: State
    reason: str = ""
    rule: str = ""
    choices: tuple[Choice, ...] = field(default=(), repr=False)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    printed: str = ""

    @property
    def ok(self) -> bool:
        """Whether it kept every rule that was checked."""
        return self.state is State.OK
