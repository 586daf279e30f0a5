"""This process has TVM imported and nothing running, and forks workers on request: in milliseconds instead of seconds.
Such a fork server is also called a zygote.

The tuner's own process cannot fork safely (it may run threads), and multiprocessing's fork server would import the
user's main script in every child. `serve` is the server, which `worker.ProcessServer` starts. The server and its
children end with the tuner, however that ends, and the scratch folder is removed with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import resource
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NoReturn

MESSAGE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_FILE_BYTES = 1 << 30  # no worker writes more into one file: an endless log must not fill the disk
_PARENT_CHECK_MS = 2000


@dataclass(frozen=True)
class Hello:
    """The first message, which says what to import before the first fork."""

    modules: tuple[str, ...]
    scratch: str


@dataclass(frozen=True)
class Spawn:
    """Fork a worker that calls `entry` ("module:function") with the connection that comes along, and `settings`.

    `name` (at most 15 characters) is what process listings show. `log` receives the worker's standard output and error.
    `cpus` is its affinity, and `env` is added to its environment.
    """

    name: str
    entry: str
    settings: Any
    log: str
    cpus: tuple[int, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """Kill a worker and everything that it started. The answer is its exit status (None if it is not known)."""

    pid: int


@dataclass(frozen=True)
class Bye:
    """Stop every worker and end. The tuner lives on and removes its scratch folder itself."""


def serve(control_fd: int, parent: int) -> None:
    """Answer requests on the socket until its other end goes away, or process `parent` ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    scratch: str | None = None
    workers: set[int] = set()
    try:
        hello: Hello = pickle.loads(control.recv(MESSAGE_BYTES))
        scratch = hello.scratch
        gc.disable()  # what is imported stays
        control.send(pickle.dumps(_import_all(hello.modules)))
        gc.enable()
        gc.freeze()  # a collection in a child would copy the pages it shares with us
        while (message := _receive(control, parent)) is not None:
            request, fds = message
            if isinstance(request, Bye):
                scratch = None
                break
            answer = _fork(control, request, fds[0], workers) if isinstance(request, Spawn) else None
            if isinstance(request, Stop):
                answer = _stop(request.pid, workers)
            control.send(pickle.dumps(answer))
    except (ConnectionError, EOFError):
        pass  # the tuner died; what is left to do is the same
    for pid in list(workers):
        _stop(pid, workers)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _import_all(modules: tuple[str, ...]) -> str | None:
    """Import modules. Return None, or one line about the first one that cannot be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"
    return None


def _receive(control: socket.socket, parent: int) -> tuple[Spawn | Stop | Bye, list[int]] | None:
    """Return the next request with the files that came along, or None when the tuner is gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    # Another process may hold a copy of the tuner's end (it forked), so a closed socket is not the only sign.
    while not poll.poll(_PARENT_CHECK_MS):
        if os.getppid() != parent:
            return None
    data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
    return (pickle.loads(data), fds) if data else None


def _fork(control: socket.socket, request: Spawn, fd: int, workers: set[int]) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        _become_worker(request, fd, server)
    os.close(fd)
    with contextlib.suppress(OSError):  # the child did it already, or is gone
        os.setpgid(pid, pid)
    workers.add(pid)
    return pid


def _stop(pid: int, workers: set[int]) -> int | None:
    """Kill a worker's process group. Return the worker's exit status as subprocess gives it (negative: the signal)."""
    if pid not in workers:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    workers.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _become_worker(request: Spawn, fd: int, server: int) -> NoReturn:
    """Run the worker in the forked child. This never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(_PR_SET_NAME, request.name.encode())
        if os.getppid() != server:
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(request.env)
        os.sched_setaffinity(0, request.cpus)
        module, _, function = request.entry.partition(":")
        getattr(importlib.import_module(module), function)(Connection(fd), request.settings)
        status = 0
    except EOFError:
        status = 0  # the tuner closed the connection: nothing left to do
    except BaseException as error:  # a worker's last words go to its log
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)
