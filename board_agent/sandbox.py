"""This module restricts what the process that runs kernels may do. Start at `confine`.

A kernel is machine code from a host that may use this board, but must not take it over. There are several layers, each
used as far as the system supports it. Namespaces keep the process away from the network and from the shared memory of
others, and it may create no further ones. It runs as an unprivileged user. Landlock limits access to files (Linux
5.13), TCP (6.7), signals and abstract sockets (6.12). Resource limits bound processes, memory and file sizes. `confine`
returns the layers that hold, and the host gets that list.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Sequence

from board_agent.seccomp import refuse_namespaces

NOBODY = 65534
FILE_BYTES = 1 << 30
_PROCESSES = 64  # more processes and threads than the user has now
_SHARED_BYTES = 256 << 20
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls; the numbers hold on every architecture
_RULE_PATH = 1
# Access rights from linux/landlock.h. The keys of _FILES are the versions of Landlock that introduced the bits.
_EXECUTE, _READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 0, 1 << 2, 1 << 3, 1 << 1
_FILES = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14}
_TCP_SINCE, _TCP = 4, 3  # bind and connect
_SCOPES_SINCE, _SCOPES = 6, 3  # abstract Unix sockets, and signals
# Folders with libraries, the interpreter, and the files that drivers and NumPy read. They hold no user's files.
_READABLE = ("/usr", "/lib", "/lib64", "/bin", "/opt", "/etc", "/proc", "/sys", "/dev", "/run")

# Device files of GPUs' drivers.
_ACCELERATORS = ("dri/*", "mali*", "kgsl-*", "nvidia*", "nvhost*", "nvmap")

_libc = ctypes.CDLL(None, use_errno=True)


def private() -> None:
    """Forbid other processes of the same user to inspect this one, which has the agent's key in its memory."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_with(parent: int, how: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends, however that happens.

    A change of user cancels this.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), how)


def adopt_orphans() -> None:
    """Make processes that a child leaves behind when it ends children of this process rather than of init."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill every child of this process, and the children that those leave behind, until none is left."""
    while children := _children():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    if path.exists():  # a kernel may be built without it
        return [int(pid) for pid in path.read_text().split()]
    own = str(os.getpid())
    return [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/stat") if _parent(p) == own]


def _parent(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def leave_shared() -> list[str]:
    """Move this process into its own namespaces and return which of the two layers hold.

    "network" means a network without an active device. "memory" means shared memory that other processes do not see and
    that ends with this process. Call this before anything starts a thread.
    """
    own = 0 if os.geteuid() == 0 else _CLONE_NEWUSER
    if _libc.unshare(own | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWNS) == 0:
        return ["network", *(["memory"] if _own_shared_memory() else [])]
    return ["network"] if _libc.unshare(own | _CLONE_NEWNET) == 0 else []


def _own_shared_memory() -> bool:
    """Mount an empty /dev/shm that only this process and its children see. Return whether that succeeded."""
    if not os.path.isdir("/dev/shm"):
        return True
    if _libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) != 0:
        return False
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    options = f"size={_SHARED_BYTES},mode=1777".encode()
    return bool(_libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, options) == 0)


def confine(folder: str, readable: Sequence[str] = ()) -> list[str]:
    """Give up every right that a kernel does not need. This cannot be undone.

    `folder` stays writable, and the paths in `readable` may be read. Return the layers that hold: "user", "files",
    "tcp", "scope", "processes" and "namespaces" (the process can create none).
    """
    held, parent = [], os.getppid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups(_driver_groups())
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        held.append("user")
    end_with(parent)
    most = _tasks_of(os.getuid()) + _PROCESSES
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    held.append("processes")
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if refuse_namespaces():
        held.append("namespaces")
    return held + _landlock(folder, [*_READABLE, sys.prefix, sys.base_prefix, *sys.path, *readable])


def _driver_groups() -> list[int]:
    """Return the groups that may use the board's accelerators."""
    found = {path.stat().st_gid for pattern in _ACCELERATORS for path in Path("/dev").glob(pattern)}
    return sorted(found - {0})


def _tasks_of(user: int) -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                count += len(os.listdir(str(process / "task")))
        except OSError:
            continue  # the process ended, or is hidden
    return count


def _landlock(folder: str, readable: Sequence[str]) -> list[str]:
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return []
    files = sum(bits for since, bits in _FILES.items() if version >= since)
    tcp = _TCP if version >= _TCP_SINCE else 0
    scopes = _SCOPES if version >= _SCOPES_SINCE else 0
    fields = [files, tcp, scopes] if scopes else [files, tcp] if tcp else [files]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return []
    try:
        for path in dict.fromkeys(p for p in readable if p and os.path.exists(p)):
            _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE if os.path.isdir(path) else _READ_FILE | _EXECUTE)
        _allow(ruleset, "/dev", _READ_FILE | _READ_DIR | _WRITE_FILE)  # drivers write to their devices
        _allow(ruleset, folder, files)
        if _libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) != 0:
            return []
    finally:
        os.close(ruleset)
    return ["files", *(["tcp"] if tcp else []), *(["scope"] if scopes else [])]


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", access, place)
        _libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)


def cap_memory(installed_bytes: int) -> None:
    """Never let this process map more than `installed_bytes`, the board's memory, beyond what it has mapped now.

    This cannot be undone.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _mapped_bytes() + installed_bytes
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def end_first() -> None:
    """Make the system kill this process and its children before all others when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def limit_memory(more_bytes: int) -> None:
    """Let this process map at most `more_bytes` beyond what it has mapped now."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _mapped_bytes() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
