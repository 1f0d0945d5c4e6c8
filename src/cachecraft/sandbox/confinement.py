"""What a process may still do: no new files, no processes, bounded memory, time and output, no rights, no network.

Each part says when the system does not offer it, and the others hold without it. Everything here is one-way: it cannot
be undone from inside. The filter of system calls is in system_calls.py.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import signal
import sys
import time
from dataclasses import dataclass

_NEW_NETWORK, _NEW_USER, _NEW_IPC = 0x40000000, 0x10000000, 0x08000000
_DIE_WITH_PARENT, _NOT_DUMPABLE, _NO_NEW_PRIVILEGES, _ADOPT_ORPHANS = 1, 4, 38, 36
_CAPABILITIES_VERSION = 0x20080522
_NOBODY = 65534
_SLACK_BYTES = 64 << 20  # of address space, for what is mapped and not data
_ANSWER, _LOG = 3, 2  # the only two files of a candidate, beside the sink for what it prints


@dataclass(frozen=True)
class Bounds:
    """Limits of one process.

    Attributes:
        cpu_seconds: Processor time.
        memory_bytes: Memory beyond what it has now.
        file_bytes: The most that any of its files may grow to.
    """

    cpu_seconds: float
    memory_bytes: int
    file_bytes: int


def cut_network() -> str:
    """Leave the network and shared memory of the system, for this process and all that it starts.

    Returns:
        Why that was not possible, or "".
    """
    if sys.platform != "linux":
        return "there are network namespaces on Linux only"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK | _NEW_IPC) and libc.unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC):
        return f"the system refuses a network namespace ({os.strerror(ctypes.get_errno())})"
    return ""


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends, so that none gets away."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def children() -> list[int]:
    """Processes whose parent is this one; empty where the system does not say."""
    own, found = str(os.getpid()), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[1] == own:
                found.append(int(name))
    return found


def keep_only(answer: int, log: int) -> None:
    """Close every file but these two: the answer becomes number 3, the log takes what is printed."""
    spare = os.dup(answer)  # above 2 in any case
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, _LOG)
    os.dup2(spare, _ANSWER)
    os.closerange(_ANSWER + 1, min(os.sysconf("SC_OPEN_MAX"), 1 << 20))


def confine(bounds: Bounds, *, root: bool) -> list[str]:
    """Give up everything but computing; the process may still read and write the files that it has open.

    Args:
        bounds: Its limits.
        root: Its user is root outside of any user namespace that `cut_network` made.

    Returns:
        What the system does not offer, a few words each; the rest holds.
    """
    missing = []
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    missing += _limit(bounds)
    if root:
        missing += _become_nobody()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.prctl(_NOT_DUMPABLE, 0, 0, 0, 0)
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
        if libc.capset(header, (ctypes.c_uint32 * 6)()):
            missing.append("capabilities cannot be given up")
    return missing


def die_with(parent: int) -> None:
    """End this process when its parent ends; at once, if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _limit(bounds: Bounds) -> list[str]:
    import resource  # not on Windows, where the server refuses to start

    # What the process has used before, which is much where it is not a fork, does not count.
    seconds = math.ceil(time.process_time() + bounds.cpu_seconds) + 1
    wanted = [
        ("processor time", resource.RLIMIT_CPU, seconds, seconds + 1),
        ("file size", resource.RLIMIT_FSIZE, bounds.file_bytes, bounds.file_bytes),
        ("core dumps", resource.RLIMIT_CORE, 0, 0),
        ("processes", resource.RLIMIT_NPROC, 0, 0),
        ("open files", resource.RLIMIT_NOFILE, 0, 0),  # those that are open stay so
    ]
    held = _memory_held()
    if held:
        data, space = held
        data_limit, space_limit = data + bounds.memory_bytes, space + bounds.memory_bytes + _SLACK_BYTES
        wanted.insert(0, ("data", resource.RLIMIT_DATA, data_limit, data_limit))
        wanted.insert(0, ("address space", resource.RLIMIT_AS, space_limit, space_limit))
    missing = [] if held else ["memory is not limited"]
    for name, limit, soft, hard in wanted:
        try:
            most = resource.getrlimit(limit)[1]
            cap = most if most != resource.RLIM_INFINITY else hard
            resource.setrlimit(limit, (min(soft, cap), min(hard, cap)))
        except (OSError, ValueError) as error:
            missing.append(f"{name} cannot be limited ({error})")
    return missing


def _memory_held() -> tuple[int, int] | None:
    """Bytes of data and of address space that this process has now, if the system says so."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            found = dict(re.findall(r"^(VmData|VmSize):\s+(\d+) kB", file.read(), re.MULTILINE))
        return int(found["VmData"]) << 10, int(found["VmSize"]) << 10
    except (OSError, KeyError):
        return None


def _become_nobody() -> list[str]:
    """Give up root, whose processes are not counted and who may read everything."""
    try:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except (OSError, AttributeError) as error:
        return [f"candidates run as root ({error})"]
    return []
