"""Keeps a process, and what it starts, from making namespaces. Start at `refuse_namespaces`.

In a user namespace of its own a process has all capabilities there, and with them parts of the system that an
unprivileged user never reaches. No limit of a single process forbids it; a filter of system calls does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUALS, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of the kernel's packet filters
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where they lie in what a filter sees
# Of all kinds of namespaces but those of time, whose bit is part of a signal's number for clone.
_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

# By machine: the architecture as audit names it, and the numbers of clone, unshare, setns and clone3.
_CALLS: dict[str, tuple[int, int, int, int, int]] = {
    "x86_64": (0xC000003E, 56, 272, 308, 435),
    "aarch64": (0xC00000B7, 220, 97, 268, 435),
}


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_namespaces() -> bool:
    """From now on; there is no way back. False where the system has no filters, or is of a kind that is not known here.
    The process must not be able to get privileges any more."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return False
    program = _filter(*calls)
    passed = _Program(len(program) // 8, program)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(passed), 0, 0) == 0)


def _filter(architecture: int, clone: int, unshare: int, setns: int, clone3: int) -> bytes:
    """clone3 has its flags in memory, where no filter sees them: it is not there, and C libraries use clone then. A
    call of another architecture, which has other numbers, ends the process; so do x86-64's calls with 32-bit pointers,
    which have numbers of their own."""
    return b"".join(
        struct.pack("=HBBI", code, yes, no, value)
        for code, yes, no, value in (
            (_LOAD, 0, 0, _ARCHITECTURE),
            (_EQUALS, 1, 0, architecture),
            (_RETURN, 0, 0, _KILL),
            (_LOAD, 0, 0, _NUMBER),
            (_ANY_BIT, 0, 1, 0x40000000),
            (_RETURN, 0, 0, _KILL),
            (_EQUALS, 0, 1, clone3),
            (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
            (_EQUALS, 0, 1, setns),
            (_RETURN, 0, 0, _FAIL | errno.EPERM),
            (_EQUALS, 1, 0, clone),
            (_EQUALS, 0, 3, unshare),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_ANY_BIT, 0, 1, _NEW),
            (_RETURN, 0, 0, _FAIL | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
