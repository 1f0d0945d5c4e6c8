"""Says what a dying process did: which array it wrote into or what it asked the system for, and in which line.

The handlers run once, in a process that is about to end, on a stack of their own; they write one record and exit. They
explain and protect nothing: without them the process ends all the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from cachecraft.sandbox.system_calls import meaning

FAULT_EXIT = 86
_STACK_BYTES = 1 << 18
_INFO, _OWN_STACK, _ONCE = 0x4, 0x08000000, 0x80000000
_ADDRESS, _CALL = 16, 24  # where siginfo_t holds what we read of it, on 64-bit Linux
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Stack(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def explain_faults(
    whose: Callable[[int], str | None], origin: str, tell: Callable[[str, str, int], None]
) -> tuple[object, ...]:
    """Have the end of this process explained; Linux only, elsewhere nothing happens.

    Args:
        whose: Names the read-only array at an address.
        origin: File name of the candidate's program, to find the line that ran.
        tell: Called with ``"wrote"``, ``"forbidden"`` or ``"fault"``, what it was in words, and the line or 0.

    Returns:
        What must be held as long as the process lives.
    """
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return ()

    def handle(number: int, info: int, _: int) -> None:
        try:
            line = _line(origin)
            if number == signal.SIGSYS:
                tell("forbidden", meaning(ctypes.c_int.from_address(info + _CALL).value), line)
            else:
                array = whose(ctypes.c_uint64.from_address(info + _ADDRESS).value)
                tell("wrote" if array else "fault", array or signal.Signals(number).name, line)
        finally:
            os._exit(FAULT_EXIT)

    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(_STACK_BYTES)
    stack = _Stack(ctypes.addressof(room), 0, _STACK_BYTES)
    libc.sigaltstack(ctypes.byref(stack), None)
    callback = _HANDLER(handle)
    action = _Action(ctypes.cast(callback, ctypes.c_void_p).value, flags=_INFO | _OWN_STACK | _ONCE - (1 << 32))
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS):
        libc.sigaction(int(number), ctypes.byref(action), None)
    return room, callback, action


def _line(origin: str) -> int:
    """The line of the candidate's program that runs, or 0."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == origin:
            return frame.f_lineno
        if frame.f_back is None:
            return 0
        frame = frame.f_back
    return 0
