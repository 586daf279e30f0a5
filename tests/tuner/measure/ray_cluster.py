"""A real Ray cluster on this machine: a head without CPUs, and nodes with one each, every one of them a session of
processes that can be killed or stopped as if its machine were."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

ROOT = Path(__file__).parents[3]
TOKEN = "an-example-of-a-token-0123456789"
_STORE_BYTES = 80_000_000
_TRIES = 3  # Ray gives up a node that starts slowly


class RayCluster:
    """Use it as a context manager. `address`: for --ray; `env`: what lets a process in."""

    def __init__(self) -> None:
        # Not a folder of pytest's: the paths of Ray's sockets would be too long.
        self._folder = Path(tempfile.mkdtemp(prefix="ray"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
        self._sessions: dict[str, int] = {}
        self._leaders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        head = ["--head", "--port", self._port, "--num-cpus", 0, "--include-dashboard=false"]
        self._start("head", [*head, "--temp-dir", self._folder / "ray"])
        return self

    def add(self, name: str, cpus: int = 1, far: bool = False, **env: str) -> None:
        """Start a node and wait until it is there. `far`: it takes itself for another machine."""
        words = ["--address", self.address, "--num-cpus", cpus, "--node-name", name]
        self._start(name, words, self._elsewhere() if far else [], **env)

    def _elsewhere(self) -> list[str]:
        """What makes a command run under another boot id."""
        boot = self._folder / "boot_id"
        boot.write_text(f"{uuid.uuid4()}\n")
        mount = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"'
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]

    def _start(self, name: str, words: list[object], prefix: Sequence[str] = (), **env: str) -> None:
        common = ["start", "--block", "--disable-usage-stats", "--object-store-memory", _STORE_BYTES]
        command = [*prefix, str(Path(sys.executable).with_name("ray")), *map(str, [*common, *words])]
        log = self._folder / f"{name}.log"
        for _ in range(_TRIES):
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, stdout=out, stderr=out, env={**os.environ, **self.env, **env}, start_new_session=True
                )
            self._sessions[name], self._leaders[name] = process.pid, process
            while process.poll() is None and b"Ray runtime started" not in log.read_bytes():
                time.sleep(0.1)
            if process.poll() is None:
                return
            self.kill(name)
        raise RuntimeError(log.read_text())

    def kill(self, name: str) -> None:
        """End all of a node, as a power cut does."""
        session = self._sessions.pop(name)
        while _signal(session, signal.SIGKILL):
            time.sleep(0.01)  # one may just have started another
        self._leaders.pop(name).wait()

    def stop(self, name: str) -> None:
        """Let a node say nothing any more, as a cut link does."""
        _signal(self._sessions[name], signal.SIGSTOP)

    def resume(self, name: str) -> None:
        _signal(self._sessions[name], signal.SIGCONT)

    def builders(self) -> list[psutil.Process]:
        """The processes in which the nodes run what is ours."""
        found = [psutil.Process(pid) for session in self._sessions.values() for pid in _processes(session)]
        return [process for process in found if "NodeBuilder" in " ".join(process.cmdline())]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._sessions):
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def two_nodes() -> Iterator[RayCluster]:
    """Nodes "a" and "b", which this process and its children may join; they find the modules of the tests."""
    with pytest.MonkeyPatch.context() as patch, RayCluster() as made:
        for name, value in {**made.env, "PYTHONPATH": str(ROOT)}.items():
            patch.setenv(name, value)
        for name in ("a", "b"):
            made.add(name)
        yield made


def _processes(session: int) -> list[int]:
    """Those that live; Ray puts some of a node into process groups of their own."""
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def _signal(session: int, number: int) -> bool:
    """Whether there was anything to send it to."""
    processes = _processes(session)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(processes)
