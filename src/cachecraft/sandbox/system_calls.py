"""A filter of system calls for one process: memory, time and its own open files; nothing else is carried out.

Linux on x86-64 and arm64 (seccomp). It needs no privileges and works in containers. A call that is not allowed raises
SIGSYS before it does anything; some that libraries try in passing get an ordinary error instead.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from types import MappingProxyType

# Name: number on x86-64, number on arm64 (None where it does not exist).
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "ioctl": (16, 29),
    "writev": (20, 66),
    "access": (21, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "shmget": (29, 194),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "socket": (41, 198),
    "connect": (42, 203),
    "sendto": (44, 206),
    "bind": (49, 200),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "exit": (60, 93),
    "kill": (62, 129),
    "uname": (63, 160),
    "fcntl": (72, 25),
    "getcwd": (79, 17),
    "rename": (82, None),
    "mkdir": (83, None),
    "unlink": (87, None),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "ptrace": (101, 117),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "prctl": (157, 167),
    "gettid": (186, 178),
    "tkill": (200, 130),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "set_tid_address": (218, 96),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "tgkill": (234, 131),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "set_robust_list": (273, 99),
    "prlimit64": (302, 261),
    "getcpu": (309, 168),
    "renameat2": (316, 276),
    "getrandom": (318, 278),
    "memfd_create": (319, 279),
    "execveat": (322, 281),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "faccessat2": (439, 439),
}
_ALLOWED = (
    *("read", "write", "writev", "close", "lseek", "fstat", "exit", "exit_group"),
    *("mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "futex", "membarrier", "rseq", "set_robust_list"),
    *("rt_sigprocmask", "rt_sigreturn", "sigaltstack", "sched_yield", "sched_getaffinity", "getcpu", "set_tid_address"),
    *("clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getrandom"),
    *("getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "uname", "sysinfo", "getrusage"),
    *("getrlimit",),
)
# Asked for in passing by the interpreter and by libraries, which take no for an answer.
_ANSWERED = MappingProxyType(
    {
        errno.ENOENT: (
            *("stat", "lstat", "newfstatat", "statx"),
            *("access", "faccessat", "faccessat2", "readlink", "readlinkat"),
        ),
        errno.EPERM: ("rt_sigaction", "prlimit64", "tgkill", "fcntl", "prctl", "getcwd", "mbind", "get_mempolicy"),
        errno.ENOTTY: ("ioctl",),
    }
)
_MEANINGS = (
    (("open", "openat", "openat2", "unlink", "unlinkat", "mkdir", "mkdirat"), "to open or change a file"),
    (("rename", "renameat", "renameat2", "memfd_create"), "to open or change a file"),
    (("socket", "socketpair", "connect", "bind", "sendto"), "to use the network"),
    (("fork", "vfork", "clone", "clone3", "execve", "execveat"), "to start a process or a thread"),
    (("kill", "tkill", "ptrace"), "to reach another process"),
)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_TRAP, _ERROR, _ALLOW, _KILL = 0x00030000, 0x00050000, 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER_MODE = 38, 22, 2


def numbers() -> dict[str, int]:
    """The calls that this file knows, with their numbers on this machine; empty where there is no filter for it."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return {}
    column = _ARCHITECTURES[platform.machine()][0]
    return {name: number for name, pair in _NUMBERS.items() if (number := pair[column]) is not None}


def meaning(number: int) -> str:
    """What a refused call was for, in words."""
    names = {known: name for name, known in numbers().items()}
    name = names.get(number, f"number {number}")
    for members, words in _MEANINGS:
        if name in members:
            return f"{words} (system call {name})"
    return f"for the system call {name}"


def _program() -> bytes:
    """The filter as instructions of the kernel's packet filter: (code, jump if true, jump if false, operand)."""
    known, instruction = numbers(), struct.Struct("=HBBI")
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()][1]), (_RETURN, 0, 0, _KILL)]
    steps.append((_LOAD, 0, 0, 0))
    if platform.machine() == "x86_64":
        steps += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _TRAP)]  # the x32 numbers
    answers = [(name, _ALLOW) for name in _ALLOWED]
    answers += [(name, _ERROR | code) for code, names in _ANSWERED.items() for name in names]
    for name, answer in answers:
        if name in known:
            steps += [(_EQUAL, 0, 1, known[name]), (_RETURN, 0, 0, answer)]
    steps.append((_RETURN, 0, 0, _TRAP))
    return b"".join(instruction.pack(*step) for step in steps)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def forbid() -> str:
    """Install the filter for this process and all that it may start; it cannot be taken off.

    Returns:
        Why it could not be installed, or "".
    """
    if not numbers():
        return f"no filter of system calls is known for {sys.platform} on {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return "the system refuses to give up privileges"
    text = _program()
    room = ctypes.create_string_buffer(text, len(text))
    program = _FilterProgram(len(text) // 8, ctypes.addressof(room))
    if libc.prctl(_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0):
        return f"the system refuses a filter of system calls ({errno.errorcode.get(ctypes.get_errno(), '?')})"
    return ""
