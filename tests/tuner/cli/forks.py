"""Commands without the seconds that imports take: a process has TVM imported, and forks for each command.

A command is the same `main`, in a process of its own with its own folder, environment and standard files; only what
is imported is there already. What has to start as a user starts it runs the script itself (`conftest.TUNE`): commands
with an environment of their own, that are killed, or that serve.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_REQUEST_BYTES = 1 << 18
# What takes long to import; importing none of it opens a driver.
_MODULES = (
    "tuner.cli.main",
    "tuner.module",
    "tuner.report.explain",
    "tuner.report.tables",
    "alembic.context",
    "xgboost",
)


class Forks:
    """The process that forks; started when the first command is run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], out: BinaryIO, err: BinaryIO) -> int:
        """Run the script `argv[0]` with what follows; its exit status (negative: the signal that ended it)."""
        request = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
        with self._lock:
            if self._socket is None:
                self._socket = self._started()
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno()])
            return int(self._socket.recv(_REQUEST_BYTES))

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[3]
            )
        atexit.register(lambda: (ours.close(), process.wait()))
        return ours


def _serve(control: socket.socket) -> None:
    """Fork for each request until the other end goes away. Only a command's process comes back from here with
    SystemExit: it ends as the script does."""
    gc.disable()
    for name in _MODULES:
        importlib.import_module(name)
    gc.enable()
    gc.freeze()
    while (received := socket.recv_fds(control, _REQUEST_BYTES, 2))[0]:
        pid = os.fork()
        if pid == 0:
            control.close()
            _become(json.loads(received[0]), received[1])
        for fd in received[1]:
            os.close(fd)
        control.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(request: dict, fds: Sequence[int]) -> None:
    for fd, standard in zip(fds, (1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    importlib.import_module("tuner.cli.main").main()


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        _serve(socket.socket(fileno=int(sys.argv[1])))
