"""The tuner's side of its child processes: `ProcessServer` starts and stops them, and `Worker` talks to one of them."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tuner.errors import BadInput, TuneError
from tuner.measure.failures import how_it_ended, last_meaningful_line
from tuner.measure.workers.fork_server import MESSAGE_BYTES, Bye, Hello, Spawn, Stop

_log = logging.getLogger(__name__)

_LOG_TAIL_BYTES = 4096
_CLOSE_SECONDS = 3.0  # a server ends within milliseconds; one that was stopped must not hold Ctrl-C up for 5 s

# Workers compute on the threads we give them. A BLAS pool would make the server multi-threaded (it could not fork
# then) and spin beside a measurement; glibc's arenas would use up the address space that limits a worker's memory.
# Where torch is installed, importing TVM asks it whether CUDA is there: that opens the driver, which no fork survives.
SERVER_ENV = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
}
_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from tuner.measure.workers.fork_server import serve; serve(int(sys.argv[1]), {parent})"
)


class ServerLost(Exception):
    """The fork server died, and its workers with it. The next spawn starts another."""


class Worker:
    """A child process at the other end of `connection`. Both directions carry pickled jobs and answers."""

    def __init__(self, server: ProcessServer, pid: int, connection: Connection, log: Path) -> None:
        self._server = server
        self.pid = pid
        self.connection = connection
        self._log = log
        self.jobs = 0  # how many it was sent so far

    def send(self, job: Any) -> None:
        """Send a job. That a worker is gone is noticed when its answer is read."""
        self.jobs += 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(job)

    def said(self) -> str:
        """Return the end of what the worker wrote to standard output and error."""
        with contextlib.suppress(OSError):
            return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return ""

    def stop(self) -> str:
        """Kill the worker, and say in a line how it ended."""
        self.connection.close()
        status = self._server.stop(self.pid)
        said = self.said()
        with contextlib.suppress(OSError):
            self._log.unlink()
        return how_it_ended(status, said)


class ServerProcess(Protocol):
    """The interface that a started server has, as `subprocess.Popen` does."""

    returncode: int | None

    def kill(self) -> None:
        """End the process at once."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        ...


def start_server(control: socket.socket, log: BinaryIO) -> ServerProcess:
    """Start the process that forks workers: it serves `control` and writes its output to `log`."""
    _log.info("starting a fork server, which imports TVM once for all workers")
    code = _START.format(path=sys.path, parent=os.getpid())
    return subprocess.Popen(
        [sys.executable, "-c", code, str(control.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[control.fileno()],
        env={**os.environ, **SERVER_ENV},
    )


class ProcessServer:
    """Starts a fork server at once and lets it fork workers. `modules` are imported before the first fork."""

    def __init__(self, scratch: Path, modules: Sequence[str]) -> None:
        self._scratch = scratch
        self._modules = tuple(modules)
        self._spawned = 0
        self._closed = False
        self._lock = threading.RLock()  # each board has a thread that measures on it
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self._scratch / "server.log", "wb") as log:
            self._process = start_server(theirs, log)
        self._socket = ours
        self._ready = False
        ours.send(pickle.dumps(Hello(self._modules, str(self._scratch))))

    def _await_ready(self) -> None:
        """Wait until the server has imported its modules. Raises BadInput if one cannot be imported, and TuneError if
        the server does not start at all."""
        if self._ready:
            return
        data = self._socket.recv(MESSAGE_BYTES)
        if not data:
            said = last_meaningful_line((self._scratch / "server.log").read_text(errors="replace"))
            raise TuneError(f"the process that starts workers ended at once: {said or 'it said nothing'}")
        problem = pickle.loads(data)
        if problem is not None:
            raise BadInput(f"workers cannot import {last_meaningful_line(problem)}")
        self._ready = True

    def _ask(self, request: Spawn | Stop, fds: Sequence[int] = ()) -> int | None:
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], fds)
            data = self._socket.recv(MESSAGE_BYTES)
        except ConnectionError:
            data = b""
        except BaseException:  # an interrupt: the answer would be taken for that to the next request
            self._kill()
            raise
        if not data:
            self._kill()
            raise ServerLost
        return pickle.loads(data)

    def spawn(
        self, name: str, entry: str, settings: Any, *, cpus: Sequence[int], env: dict[str, str] | None = None
    ) -> Worker:
        """Fork a worker that runs `entry` ("module:function") on `cpus`. See `fork_server.Spawn`.

        Raises BadInput if a module that the server imports cannot be imported, and TuneError if no server can be
        started.
        """
        with self._lock:
            try:
                return self._spawn(name, entry, settings, cpus=cpus, env=env or {})
            except (ServerLost, OSError):
                if self._closed:
                    raise TuneError("measuring has ended") from None
                self._start()
                return self._spawn(name, entry, settings, cpus=cpus, env=env or {})

    def _spawn(self, name: str, entry: str, settings: Any, *, cpus: Sequence[int], env: dict[str, str]) -> Worker:
        self._await_ready()
        self._spawned += 1
        log = self._scratch / f"worker-{self._spawned}.log"
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = self._ask(Spawn(name, entry, settings, str(log), tuple(cpus), env), [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        assert pid is not None
        return Worker(self, pid, Connection(ours.detach()), log)

    def stop(self, pid: int) -> int | None:
        """Kill a worker. Return its exit status (negative: the signal that ended it), or None if the server is gone."""
        with self._lock:
            try:
                return self._ask(Stop(pid))
            except (ServerLost, OSError):
                return None

    def _kill(self) -> None:
        """End the server. Its workers have asked the kernel to be killed with it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the server and every worker. More calls do nothing."""
        self._closed = True
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                self._socket.send(pickle.dumps(Bye()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
            self._kill()
