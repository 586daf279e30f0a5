"""Commands and process servers without the seconds that imports take: a process has TVM imported, and forks for each.

A command is the same `main`, in a process of its own with its own folder, environment and standard files; only what
is imported is there already. What has to start as a user starts it runs the script itself (`cli.conftest.TUNE`):
commands with an environment that imports read, and those that serve. There is one such process for a test run (for
each of xdist's workers).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tests.spare_server import Forked, Spare, enter, fork_spare, use_spares
from tuner.measure.workers.worker import SERVER_ENV

_REQUEST_BYTES = 1 << 18
# What takes long to import; importing none of it opens a driver.
_MODULES = (
    "tuner.cli.main",
    "tuner.module",
    "tuner.report.explain",
    "tuner.report.tables",
    "tuner.measure.workers.build_main",
    "tuner.measure.workers.run_main",
    "alembic.context",
    "xgboost",
)


class Forks:
    """Starts the process that forks when it is first asked, and asks it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], out: BinaryIO, err: BinaryIO) -> int:
        """Run the script `argv[0]` with what follows; return its exit status (negative: the signal that ended it)."""
        return self.start(argv, cwd, env, out, err).wait()

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], out: BinaryIO, err: BinaryIO) -> Forked:
        """Let the script `argv[0]` run with what follows."""
        request = {"argv": list(argv), "cwd": str(cwd), "env": dict(env)}
        with self._lock:
            pid = self._ask(request, [out.fileno(), err.fileno()])[0]
        return Forked(int(pid), self._status)

    def _status(self, pid: int) -> int:
        with self._lock:
            return int(self._ask({"ended": pid}, [])[0])

    def spare(self) -> Spare:
        """Fork a process server in waiting, a child of the process that forks."""
        with self._lock:
            pid, (channel,) = self._ask({}, [])
        return Spare(int(pid), socket.socket(fileno=channel))

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> tuple[bytes, list[int]]:
        if self._process is None or self._process.poll() is not None:  # a test may have killed all children
            self._start()
        socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        answer, received, _, _ = socket.recv_fds(self._socket, _REQUEST_BYTES, 1)
        return answer, received

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[1],
                env={**os.environ, **SERVER_ENV},
            )
        self._socket, self._process = ours, process
        atexit.register(lambda: (ours.close(), process.wait()))


FORKS = Forks()


def _serve(control: socket.socket) -> None:
    """Fork for each request until the other end goes away. A command's process never comes back from here."""
    gc.disable()
    for name in _MODULES:
        importlib.import_module(name)
    importlib.import_module("tuner.cli.main").root()
    gc.enable()
    gc.freeze()
    spares: set[int] = set()
    while (received := socket.recv_fds(control, _REQUEST_BYTES, 2))[0]:
        request, fds = json.loads(received[0]), received[1]
        spares = {pid for pid in spares if os.waitpid(pid, os.WNOHANG) == (0, 0)}
        if "ended" in request:
            control.send(str(os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])).encode())
        elif request:
            control.send(str(_started(control, request, fds)).encode())
        else:
            spare = fork_spare(control)
            spares.add(spare.pid)
            with spare.channel as channel:
                socket.send_fds(control, [str(spare.pid).encode()], [channel.fileno()])


def _started(control: socket.socket, request: dict[str, Any], fds: Sequence[int]) -> int:
    pid = os.fork()
    if pid == 0:
        control.close()
        _become(request, fds)
    for fd in fds:
        os.close(fd)
    return pid


def _become(request: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    for fd, standard in zip(fds, (1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    enter(request["cwd"], request["env"])
    sys.argv[:] = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    first = [fork_spare()]  # while this process has no threads
    use_spares(lambda: first.pop() if first else None)
    _end(_status_of(importlib.import_module("tuner.cli.main").main))


def _status_of(main: Callable[[], object]) -> int:
    """Run the command; return the exit status that the interpreter would end with."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End as the interpreter does, but for taking apart a million imported objects, which takes 0.15 s of a processor:
    wait for threads, run what is registered, flush."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        _serve(socket.socket(fileno=int(sys.argv[1])))
