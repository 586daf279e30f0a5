"""This module keeps a process and its children from creating namespaces. Start at `refuse_namespaces`.

Inside its own user namespace a process has all capabilities, and so it reaches parts of the kernel that an unprivileged
user never reaches. No resource limit of a single process forbids that, but a filter of system calls does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUALS, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of the kernel's packet filters
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # byte offsets in the struct seccomp_data that a filter reads
# The CLONE_NEW* flags of all namespaces except time. For clone, the bit of time is part of a signal's number.
_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

# By machine: its AUDIT_ARCH constant, and the numbers of the system calls clone, unshare, setns and clone3.
_CALLS: dict[str, tuple[int, int, int, int, int]] = {
    "x86_64": (0xC000003E, 56, 272, 308, 435),
    "aarch64": (0xC00000B7, 220, 97, 268, 435),
}


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_namespaces() -> bool:
    """Forbid this process to create or enter namespaces from now on. This cannot be undone.

    Return False where the system has no filters, or the machine is not in the table. The process must have set
    "no new privileges" before.
    """
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return False
    program = _filter(*calls)
    passed = _Program(len(program) // 8, program)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(passed), 0, 0) == 0)


def _filter(architecture: int, clone: int, unshare: int, setns: int, clone3: int) -> bytes:
    """Return the filter program that refuses these system calls.

    clone3 passes its flags in memory, where no filter can read them. So it fails with ENOSYS, and C libraries fall back
    to clone. A call of another architecture kills the process, because its numbers differ. Calls of the x32 ABI of
    x86-64 kill it too, because they have their own numbers.
    """
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
