"""From how a candidate ended and what it wrote to a verdict: what the system says comes first, its own word last.

Everything that is read here was written by a program that nobody trusts: lengths, counts and states are checked, texts
are shortened and made printable, and masks are counted again.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from cachecraft.errors import PolicyLoadError
from cachecraft.policy.invariants import AllocationError, InvariantError, check_selection
from cachecraft.sandbox.faults import FAULT_EXIT
from cachecraft.sandbox.program import Program
from cachecraft.sandbox.shared import SharedItem
from cachecraft.sandbox.verdict import (
    Ask,
    Choice,
    Limits,
    SandboxError,
    State,
    Verdict,
    packed_size,
    unpacked,
)
from cachecraft.sandbox.wire import harmless, read_frames

# What a candidate may say of itself; the rest only the system can say.
_ADMITTED = frozenset(
    {
        State.BROKEN,
        State.RAISED,
        State.WROTE_FEATURES,
        State.NONDETERMINISTIC,
        State.STATE_LEAK,
        State.MEMORY,
    }
)
_PRINTED = 300


@dataclass(frozen=True)
class Request:
    """What a candidate is asked to do: to choose, to be checked on synthetic layers, or only to confine itself."""

    program: Program
    work: Literal["choose", "check", "probe"]
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True)
class Finished:
    """How a candidate's process ended.

    Attributes:
        exit: Its exit code, negative for a signal; None if nobody knows.
        late: It was ended at its deadline.
        seconds, cpu_seconds: What it took.
        answer, printed: What it wrote.
    """

    exit: int | None
    late: bool
    seconds: float
    cpu_seconds: float
    answer: bytes
    printed: bytes


def probed(finished: Finished) -> list[str]:
    """What the system does not offer, from a run that only confined itself.

    Raises:
        SandboxError: It did not even do that.
    """
    try:
        (told, _), *rest = read_frames(finished.answer)
        if finished.exit == 0 and not rest and isinstance(told.get("missing"), list):
            return [harmless(each) for each in told["missing"]]
    except ValueError:
        pass
    raise SandboxError(
        f"A process cannot be confined on this system: its trial ended with {finished.exit} and said "
        f"{harmless(finished.answer[8:].decode(errors='replace')) or 'nothing'}; run candidates elsewhere."
    )


def judge(request: Request, items: Mapping[str, SharedItem], limits: Limits, finished: Finished) -> Verdict:
    """The verdict on a candidate.

    Args:
        request: What it was asked.
        items: The items by name.
        limits: What it was allowed.
        finished: How it ended.
    """
    state, reason, rule, choices = _judged(request, items, limits, finished)
    name = request.program.name
    return Verdict(
        state=state,
        reason=reason if not reason or reason.startswith("Policy ") else f"Policy {name} {reason}",
        rule=rule,
        choices=choices,
        seconds=finished.seconds,
        cpu_seconds=finished.cpu_seconds,
        printed=harmless(finished.printed[: 4 * _PRINTED].decode(errors="replace"), _PRINTED),
    )


_Judged = tuple[State, str, str, tuple[Choice, ...]]


def _judged(request: Request, items: Mapping[str, SharedItem], limits: Limits, finished: Finished) -> _Judged:
    def refused(state: State, reason: str, rule: str = "") -> _Judged:
        return state, reason, rule, ()

    if finished.late or finished.exit == -signal.SIGXCPU:
        return refused(State.TIMEOUT, f"was not done after {limits.seconds:g} seconds; make it cheaper.")
    if finished.exit == -signal.SIGXFSZ:
        return refused(State.OUTPUT, f"printed or wrote more than {limits.output_bytes} bytes; print nothing.")
    frames: list[tuple[dict[str, Any], bytes]] = []
    unreadable = ""
    try:
        frames.extend(read_frames(finished.answer))
    except ValueError as error:
        unreadable = str(error)
    last = frames[-1][0] if frames else {}
    if finished.exit == FAULT_EXIT and "fault" in last:
        return refused(*_fault(last))
    if finished.exit is None or finished.exit < 0:
        return refused(*_killed(finished.exit))
    if isinstance(last.get("error"), str) and last["error"] in _ADMITTED:
        return refused(State(last["error"]), harmless(last.get("reason")), harmless(last.get("rule"), 60))
    if unreadable:
        return refused(State.MALFORMED, f"handed over an answer that cannot be read: {unreadable}; return masks only.")
    if finished.exit != 0 or len(frames) < max(1, len(request.asks)):
        return refused(State.CRASHED, f"ended itself with code {finished.exit} before its answer was complete.")
    if request.work != "choose":
        kept = len(frames) == 1 and last == {"kept": True}
        return (State.OK, "", "", ()) if kept else refused(State.MALFORMED, "answered what nobody asked.")
    return _chosen(request, items, frames)


def _fault(told: Mapping[str, Any]) -> tuple[State, str]:
    line = told.get("line")
    where = f" in line {line}" if isinstance(line, int) and line > 0 else ""
    what = harmless(told.get("what"), 120)
    match told["fault"]:
        case "wrote":
            return (
                State.WROTE_FEATURES,
                f"wrote into {what}{where}, which is read-only; work on a copy made with .clone().",
            )
        case "forbidden":
            return State.FORBIDDEN, f"asked the system{where} {what}; a policy may only compute."
        case _:
            return State.CRASHED, f"crashed with {what}{where}; it reached memory that is not there."


def _killed(code: int | None) -> tuple[State, str]:
    if code == -signal.SIGSYS:
        return State.FORBIDDEN, "asked the system for something other than memory and time; a policy may only compute."
    if code == -signal.SIGKILL:
        return State.CRASHED, "was killed from outside, as the system does when memory runs out."
    name = "an unknown end" if code is None else signal.Signals(-code).name
    return State.CRASHED, f"crashed with {name}."


def _chosen(request: Request, items: Mapping[str, SharedItem], frames: list[tuple[dict[str, Any], bytes]]) -> _Judged:
    """Read the choices and count them again."""
    if len(frames) != len(request.asks):
        return State.MALFORMED, f"gave {len(frames)} answers to {len(request.asks)} questions.", "", ()
    choices = []
    for ask, (header, blob) in zip(request.asks, frames, strict=True):
        item = items[ask.item]
        size = packed_size(item.shape)
        if len(blob) != size * len(ask.keeps):
            return State.MALFORMED, f"handed over {len(blob)} bytes of masks where {size} a budget are asked.", "", ()
        bits = tuple(blob[start : start + size] for start in range(0, len(blob), size))
        try:
            choice = _read(ask, item, header, bits)
            for keep, each in zip(ask.keeps, bits, strict=True):
                _count(request.program, item, keep, each)
        except InvariantError as error:
            return State.BROKEN, str(error), type(error).__name__, ()
        except (KeyError, TypeError, ValueError, PolicyLoadError) as error:
            return State.MALFORMED, f"handed over an answer that cannot be read: {harmless(error)}.", "", ()
        choices.append(choice)
    return State.OK, "", "", tuple(choices)


def _read(ask: Ask, item: SharedItem, header: Mapping[str, Any], bits: tuple[bytes, ...]) -> Choice:
    forced, seconds, computed, notes = header["forced"], header["seconds"], header["computed"], header["notes"]
    sound = all(isinstance(each, list) and len(each) == len(ask.keeps) for each in (forced, notes))
    sound = sound and isinstance(computed, list)
    if not sound or not isinstance(seconds, float) or not 0 <= seconds < float("inf"):
        raise ValueError("its account of itself makes no sense")
    return Choice(
        ask=ask,
        shape=item.shape,
        bits=bits,
        read_keep=header["read_keep"] is True,
        forced=tuple(each is True for each in forced),
        seconds=seconds,
        computed=tuple(harmless(each, 60) for each in computed[:32]),
        notes=tuple(harmless(each) for each in notes),
    )


def _count(program: Program, item: SharedItem, keep: int, bits: bytes) -> None:
    """Each head keeps its budget, or all together where the program divides it; InvariantError if not."""
    counts = unpacked(bits, item.shape).sum(dim=-1)  # (L, G)
    if program.allocates:
        total = keep * counts.numel()
        if int(counts.sum()) != total or int(counts.min()) < 1:
            raise AllocationError(
                f"Policy {program.name} keeps {int(counts.sum())} entries in all layers and heads, at least "
                f"{int(counts.min())} a head; keep {total}, and at least 1 a head."
            )
    elif not bool((counts == keep).all()):
        wanted = torch.full((item.shape[1],), keep, dtype=torch.int64)
        for layer, mask in zip(item.layers(), unpacked(bits, item.shape), strict=True):
            check_selection(mask, wanted, layer.view(), program.name)
