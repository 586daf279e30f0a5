"""A process server (tuner.measure.workers.fork_server) without the seconds that its imports take.

A spare is forked from a process that has all of it imported (tests.forks), and waits. `Spare.start_server` takes
the place of `tuner.measure.workers.worker.start_server` and turns the spare into the
server that would otherwise be started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import BinaryIO

from tuner.measure.workers import worker as processes
from tuner.measure.workers.fork_server import serve

_REQUEST_BYTES = 1 << 18


def enter(folder: str, env: Mapping[str, str]) -> None:
    """Let this forked process have a folder and an environment of its own."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)


def reaped(pid: int) -> int:
    """Return the exit status of a process that has ended; 0 where only its parent, another process, can know it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


class Forked:
    """Stands for a forked process, as `subprocess.Popen` does, in any thread. Its parent may be another process than
    this one: `status` returns the exit status once it has ended."""

    def __init__(self, pid: int, status: Callable[[int], int] = reaped) -> None:
        self.pid, self._status = pid, status
        self.returncode: int | None = None
        self._reaping = threading.Lock()
        self._pidfd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._pidfd)  # another thread may still look at it when one has the status

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status (negative: the signal that ended it)."""
        if self.returncode is None and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        with self._reaping:
            if self.returncode is None:
                self.returncode = self._status(self.pid)
        return self.returncode


class Spare:
    """Turns a waiting process, `pid`, into a server. It has one end of `channel`, its user the other."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel

    def start_server(self, control: socket.socket, log: BinaryIO) -> Forked:
        """See tuner.measure.workers.worker.start_server."""
        request = {"path": sys.path, "cwd": os.getcwd(), "env": {**os.environ, **processes.SERVER_ENV}}
        process = Forked(self.pid)
        with self.channel as channel:
            socket.send_fds(channel, [json.dumps(request).encode()], [control.fileno(), log.fileno()])
        return process


def fork_spare(*unused: socket.socket) -> Spare:
    """Fork a spare from this process, which must have no threads. The spare closes what is `unused` there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        status = 1
        try:
            for other in (ours, *unused):
                other.close()
            _become_server(theirs, parent)
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    return Spare(pid, ours)


def _become_server(channel: socket.socket, parent: int) -> None:
    """Wait for a request and serve it; return when nobody will ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    data, fds, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 2)
    channel.close()
    if not data:
        return
    request, (control, log) = json.loads(data), fds
    with open(os.devnull, "rb") as nothing:
        for fd, standard in ((nothing.fileno(), 0), (log, 1), (log, 2)):
            os.dup2(fd, standard)
    os.close(log)
    enter(request["cwd"], request["env"])
    sys.path[:] = request["path"]
    serve(control, parent)


def use_spares(spares: Callable[[], Spare | None]) -> None:
    """Let the process servers of this process be spares from now on, and start as ever where there is none."""
    start = processes.start_server

    def start_server(control: socket.socket, log: BinaryIO) -> processes.ServerProcess:
        spare = spares()
        return start(control, log) if spare is None else spare.start_server(control, log)

    processes.start_server = start_server
