"""One host's connection: its requests go to a process that runs kernels, with a limit on time. Start at `serve_host`.

The session sees to what that process cannot: it says how it died and starts another, tells the host that it is alive
while a kernel runs, and reads the board's clocks and temperature around each measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from board_agent.facts import condition, facts
from board_agent.sandbox import adopt_orphans, end_children
from board_agent.wire import VERSION, Frame, Gone, WireError, receive, send

ALIVE_SECONDS = 2.0  # between signs of life
_LOOK_SECONDS = 0.25  # between looks whether the process still runs: what it started may keep its socket open
MOST_BYTES = 1 << 30  # of one message from a host
_PREFIX = "edgetune-board-"
BENCH = ["-m", "board_agent.bench"]  # what Python runs for kernels; a simulated board has another
_MEASURES = ("call", "repeat", "compare")


class Bench:
    """The process that runs kernels, and the socket to it."""

    def __init__(self, settings: dict[str, Any], scratch: str) -> None:
        self.folder = tempfile.mkdtemp(dir=scratch)
        self.socket, theirs = socket.socketpair()
        with theirs, open(os.path.join(scratch, "bench.log"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *BENCH, str(theirs.fileno()), self.folder, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                cwd=self.folder,
                env={**os.environ, "HOME": self.folder, "TMPDIR": self.folder, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
        self._log = os.path.join(scratch, "bench.log")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> str:
        """End it and all that it started; how it ended, in a few words."""
        early = self._process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_children()  # what it started and put into groups of their own is ours by now
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        status = self._process.returncode if early is None else early
        said = ""
        with contextlib.suppress(OSError), open(self._log, errors="replace") as log:
            said = next((line.strip() for line in reversed(log.readlines()) if line.strip()), "")
        how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{how}: {said[-200:]}" if said else how


class Session:
    """Answers one host until it is gone."""

    def __init__(self, host: Any, scratch: str) -> None:
        self._host, self._scratch = host, scratch
        self._bench: Bench | None = None

    def serve(self) -> None:
        """Raises Gone when the host leaves, WireError if it does not keep to the protocol."""
        try:
            send(self._host, {"agent": VERSION, "facts": facts()})
            while True:
                message, parts = receive(self._host, MOST_BYTES)
                answer, more = self._answer(message, parts)
                del parts
                send(self._host, answer, more)
        finally:
            if self._bench is not None:
                self._bench.kill()

    def _answer(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        action, limit = message.get("do"), message.get("seconds", 60.0)
        if action == "condition":
            return condition(), []
        if not isinstance(limit, (int, float)) or not 0 < limit < 86400:
            return {"refused": f"a limit of {limit!r} seconds makes no sense"}, []
        if action == "start":
            return self._start(message.get("settings"), float(limit))
        if self._bench is None:
            return {"refused": "nothing was started"}, []
        if action == "stop":
            return self._lost()
        before = condition() if action in _MEASURES else None
        with contextlib.suppress(Gone):  # noticed when its answer is read
            send(self._bench.socket, message, parts)
        answer, more = self._awaited(float(limit))
        if before is not None:
            answer["conditions"] = [before, condition()]
        return answer, more

    def _start(self, settings: Any, limit: float) -> Frame:
        if self._bench is not None:
            self._lost()
        if not isinstance(settings, dict):
            return {"refused": "settings are missing"}, []
        try:
            self._bench = Bench(settings, self._scratch)
        except OSError as error:
            return {"unfit": f"{self._scratch}: {error.strerror}: free some space there"}, []
        return self._awaited(limit)

    def _awaited(self, limit: float) -> Frame:
        """What the process answers, within the limit; meanwhile the host hears that the board is alive."""
        assert self._bench is not None
        now = time.monotonic()
        end, alive = now + limit, now + ALIVE_SECONDS
        while now < end:
            ready, _, _ = select.select([self._bench.socket, self._host], [], [], min(end - now, _LOOK_SECONDS))
            now = time.monotonic()
            if self._bench.socket in ready:
                try:
                    return receive(self._bench.socket, MOST_BYTES)
                except (Gone, WireError):
                    return self._lost()
            if self._host in ready:  # it has nothing to say now: it left
                raise Gone("the host went away while a kernel ran")
            if self._bench.ended:
                return self._lost()
            if now >= alive:
                send(self._host, {"alive": True})
                alive = now + ALIVE_SECONDS
        answer, _ = self._lost()
        return {**answer, "late": limit}, []

    def _lost(self) -> Frame:
        assert self._bench is not None
        bench, self._bench = self._bench, None
        return {"died": bench.kill()}, []


def serve_host(host: Any, base: str) -> None:
    """Serve one connected host, in a scratch folder of its own that goes with it."""
    adopt_orphans()
    scratch = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base)
    os.chmod(scratch, 0o711)  # an unprivileged process finds its own folder in it
    try:
        Session(host, scratch).serve()
    except Gone:
        pass
    except WireError as error:
        with contextlib.suppress(Gone, WireError):
            send(host, {"refused": str(error)})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep(base: str) -> None:
    """Remove the folders of sessions that died without doing so; other users' are left alone."""
    for name in os.listdir(base):
        path = os.path.join(base, name)
        session = name[len(_PREFIX) :].partition("-")[0]
        if name.startswith(_PREFIX) and session.isdigit() and not os.path.exists(f"/proc/{session}"):
            with contextlib.suppress(OSError):
                if os.stat(path).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
