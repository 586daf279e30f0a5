"""This module serves one host's connection: a session forwards requests to a process that runs kernels.

Start at `serve_host`. The session limits the time of each request and does what the kernel process cannot do itself.
It waits for its host's turn and ends the turn. It reports how the process died and starts another. It sends the host
signs of life while a kernel runs or other hosts measure. It reads the board's clocks and temperature around each
measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from typing import Any, Sequence

from board_agent.condition import condition
from board_agent.defaults import ALIVE_SECONDS, TURN_SECONDS
from board_agent.facts import facts
from board_agent.sandbox import adopt_orphans, end_children
from board_agent.scratch import Scratch
from board_agent.turn_queue import Alone, QueueEntry
from board_agent.wire import VERSION, Frame, Gone, WireError, receive, send

# Seconds between checks whether the process still runs. The socket alone does not show its end: a process that it
# started may keep the socket open.
_LOOK_SECONDS = 0.25
_LINE_SECONDS = 0.5  # between looks at the turn queue: each takes cores from a measurement for a tenth of a millisecond
_MOMENT = 2.0  # seconds that a session which just ended may need to clean up
_MOST_TURNS = 5  # turns' time after which a host that has measured nothing must give up the board
MOST_BYTES = 1 << 30  # of one message from a host
_SAID_BYTES = 4096  # of the end of the process's log that are read: a candidate may print a lot
KERNEL_SERVER = [
    "-m",
    "board_agent.kernel_server",
]  # Python's arguments for the kernel process; a simulated board has others
_ENDS = ("damage", "compare")  # the last request of a candidate: a turn that ends before it loses the measurement
_MEASURES = ("call", "repeat", "compare")
# Names of the agent's environment variables that a kernel process gets.
_PASSED = re.compile(
    r"(PATH|LANG|LANGUAGE|LC_\w+|TZ|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|PYTHON(HOME|HASHSEED|PYCACHEPREFIX|UTF8)"
    r"|(OCL_ICD|OPENCL|POCL|PYOPENCL|CUDA|NVIDIA|TVM|OMP|MALI|INTEL|SYCL|NEO|MESA|RUSTICL|EDGETUNE)_\w+|CL_CONFIG_\w+)$"
)
_FREE = ("condition", "start")  # requests that a host may make without having the turn


class KernelProcess:
    """A handle that starts the process which runs kernels, and holds the socket to it."""

    def __init__(self, settings: dict[str, Any], scratch: str) -> None:
        self.folder = tempfile.mkdtemp(dir=scratch)
        self.socket, theirs = socket.socketpair()
        with theirs, open(os.path.join(scratch, "kernels.log"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *KERNEL_SERVER, str(theirs.fileno()), self.folder, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                cwd=self.folder,
                env=_environment(self.folder),
                start_new_session=True,
            )
        self._log = os.path.join(scratch, "kernels.log")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> str:
        """End the process and everything that it started. Return in a few words how it ended."""
        early = self._process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_children()  # processes that it moved to other groups are children of this process by now
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        status = self._process.returncode if early is None else early
        said = ""
        with contextlib.suppress(OSError), open(self._log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _SAID_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{how}: {said[-200:]}" if said else how


def _environment(folder: str) -> dict[str, str]:
    """Return the variables that drivers, libraries and Python use, and no others of the agent's.

    NumPy gets one thread: its threads would start before the process is confined, and would stay unconfined.
    """
    return {
        **{name: value for name, value in os.environ.items() if _PASSED.match(name)},
        "HOME": folder,
        "TMPDIR": folder,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),  # Python 3.8 keeps relative paths of archives
    }


class _HostLeft(Exception):
    """Raised when the host left while the board was busy with its request."""


class _Late(Exception):
    """Raised when the kernel process did not read or answer a request within the time limit."""


class _Timed:
    """The socket to a kernel process, with a deadline that holds whatever the process does.

    It has the methods through which frames are sent and received. They raise _Late after `limit` seconds. While they
    wait, they send the host signs of life, and raise _HostLeft if it has left.
    """

    def __init__(self, bench: KernelProcess, host: Any, limit: float, alive_seconds: float) -> None:
        self._bench, self._host = bench, host
        self._end, self._signs = time.monotonic() + limit, _Signs(host, alive_seconds)
        bench.socket.setblocking(False)

    def sendall(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            self._wait(sending=True)
            with contextlib.suppress(BlockingIOError):
                left = left[self._bench.socket.send(left) :]

    def recv(self, size: int) -> bytes:
        self._wait(sending=False)
        return self._bench.socket.recv(size)

    def _wait(self, sending: bool) -> None:
        """Wait until the process has read or written something.

        Raises Gone if the process ended, _HostLeft if the host left, and _Late at the deadline.
        """
        ours = [self._bench.socket]
        while (now := time.monotonic()) < self._end:
            pause = min(self._end - now, _LOOK_SECONDS)
            readable, writable, _ = select.select([self._host, *ours[sending:]], ours if sending else [], [], pause)
            if self._host in readable:  # a host sends nothing while it waits, so this means that it left
                raise _HostLeft
            self._signs.give()
            if writable or self._bench.socket in readable:
                return
            if self._bench.ended:
                raise Gone("the process ended")
        raise _Late


class _Coming:
    """A host's connection that sends signs of life while a request is being received.

    Without them a host that sends a large request through a slow link would take the board for gone.
    """

    def __init__(self, host: Any, alive_seconds: float) -> None:
        self._host, self._signs = host, _Signs(host, alive_seconds)

    def recv(self, size: int) -> bytes:
        data: bytes = self._host.recv(size)
        self._signs.give()
        return data


class _Signs:
    """A sender that tells a host every `seconds`, from its creation on, that the board is alive."""

    def __init__(self, host: Any, seconds: float) -> None:
        self._host, self._seconds = host, seconds
        self._due = time.monotonic() + seconds

    def give(self) -> None:
        """Send a sign of life if one is due. Raises _HostLeft if the host is gone."""
        if time.monotonic() < self._due:
            return
        try:
            send(self._host, {"alive": True})
        except Gone as gone:
            raise _HostLeft from gone
        self._due = time.monotonic() + self._seconds


class Turn:
    """A host's time on the board, which ends only while other hosts wait.

    It is over after `seconds` if the host has measured something. A host that has measured nothing loses it after
    `seconds` without a request, or after _MOST_TURNS times `seconds`. Otherwise it could keep the board for ever.
    """

    def __init__(self, entry: QueueEntry | Alone, seconds: float) -> None:
        self._entry, self._seconds = entry, seconds
        self._began = self._asked = self._looked = time.monotonic()
        self._measured = False

    def answered(self, message: dict[str, Any]) -> None:
        if message.get("do") == "condition":  # an idle host asks for this too, so it is no sign of work
            return
        self._asked = time.monotonic()
        self._measured |= message.get("do") in _ENDS

    def is_over(self) -> bool:
        now = time.monotonic()
        held, idle = now - self._began, now - self._asked
        if held < self._seconds or now - self._looked < _LINE_SECONDS:
            return False
        if not (self._measured or idle >= self._seconds or held >= _MOST_TURNS * self._seconds):
            return False
        self._looked = now
        return self._entry.look().waiting > 0


class Session:
    """A server that answers one host until the host leaves, and sends it a sign of life every `alive_seconds`."""

    def __init__(
        self,
        host: Any,
        scratch: str,
        entry: QueueEntry | Alone,
        turn_seconds: float = TURN_SECONDS,
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._host, self._scratch, self._entry = host, scratch, entry
        self._turn_seconds, self._alive_seconds = turn_seconds, alive_seconds
        self._bench: KernelProcess | None = None
        self._turn: Turn | None = None
        self._over = False  # whether a turn has ended and the host has not been told yet

    def serve(self) -> None:
        """Greet the host and answer its requests.

        Raises Gone or _HostLeft when the host leaves, and WireError if it violates the protocol.
        """
        try:
            line = self._entry.look()._asdict()
            send(self._host, {"agent": VERSION, "facts": facts(), "line": line, "alive": self._alive_seconds})
            while True:
                message, parts = self._request()
                answer, more = self._answer(message, parts)
                del parts
                if self._turn is not None:
                    self._turn.answered(message)
                send(self._host, answer, more)
        finally:
            if self._bench is not None:
                self._bench.kill()

    def _request(self) -> Frame:
        """Wait for the next request and return it. A host that sends none loses the board too when its turn is over."""
        while not _decrypted(self._host) and not select.select([self._host], [], [], 1.0)[0]:
            self._end_turn()
        return receive(_Coming(self._host, self._alive_seconds), MOST_BYTES)

    def _end_turn(self) -> None:
        """End the host's turn if its time is over."""
        if self._turn is None or not self._turn.is_over():
            return
        if self._bench is not None:
            self._lost()
        self._entry.rest()
        self._turn, self._over = None, True
        self._entry.log("turn is over")

    def _answer(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        action, limit = message.get("do"), message.get("seconds", 60.0)
        self._end_turn()
        if self._over and action not in _FREE:
            self._over = False
            return {"over": self._turn_seconds}, []
        if action == "condition":
            return condition(), []
        if not isinstance(limit, (int, float)) or not 0 < limit < 86400:
            return {"refused": f"a limit of {limit!r} seconds makes no sense"}, []
        if action == "start":
            return self._start(message.get("settings"), float(limit), bool(message.get("wait")))
        if self._bench is None:
            return {"refused": "nothing was started"}, []
        if action == "stop":
            return self._lost()
        before = condition() if action in _MEASURES else None
        answer, more = self._awaited(float(limit), message, parts)
        if before is not None:
            answer["conditions"] = [before, condition()]
        return answer, more

    def _start(self, settings: Any, limit: float, wait: bool) -> Frame:
        if self._bench is not None:
            self._lost()
        if not isinstance(settings, dict):
            return {"refused": "settings are missing"}, []
        try:
            if self._turn is None and (busy := self._await_turn(wait)):
                return busy, []
            self._bench = KernelProcess(settings, self._scratch)
        except OSError as error:
            return {"unfit": f"{error.filename or self._scratch}: {error.strerror}: free some space there"}, []
        return self._awaited(limit)

    def _await_turn(self, wait: bool) -> dict[str, Any]:
        """Get the turn for the host and return an empty answer.

        With `wait` this waits in the turn queue and reports the host's position meanwhile. Without it, the turn is
        taken only if no other host measures or waits; otherwise the answer tells the state of the queue. Raises Gone
        if the host leaves.
        """
        began = alive = time.monotonic()
        if wait:
            self._entry.wait()
        while (standing := self._entry.look()).place if wait else not self._entry.take():
            now = time.monotonic()
            if not wait and now - began >= _MOMENT:
                return {"busy": self._entry.look()._asdict()}
            if wait and now >= alive:
                send(self._host, {"waiting": standing._asdict()})
                alive = now + self._alive_seconds
            pause = min(_LINE_SECONDS, self._alive_seconds)
            if select.select([self._host], [], [], pause)[0]:  # a waiting host sends nothing, so it left
                raise Gone("the host went away while it waited")
        self._turn, self._over = Turn(self._entry, self._turn_seconds), False
        self._entry.log("turn begins")
        return {}

    def _awaited(self, limit: float, message: dict[str, Any] | None = None, parts: Sequence[bytes] = ()) -> Frame:
        """Send the process a message, if there is one, and return its answer.

        Both must be done within `limit` seconds; otherwise the process is killed and the answer says so. The host gets
        signs of life meanwhile.
        """
        assert self._bench is not None
        bench = _Timed(self._bench, self._host, limit, self._alive_seconds)
        try:
            if message is not None:
                with contextlib.suppress(Gone):  # `receive` below notices it too
                    send(bench, message, parts)
            return receive(bench, MOST_BYTES)
        except (Gone, WireError):
            return self._lost()
        except _Late:
            answer, _ = self._lost()
            return {**answer, "late": limit}, []

    def _lost(self) -> Frame:
        assert self._bench is not None
        bench, self._bench = self._bench, None
        return {"died": bench.kill()}, []


def scratch_for_candidates(base: str) -> Scratch:
    """Make a scratch folder that unprivileged processes may enter, so that they can use folders inside it.

    Raises OSError if it cannot be made.
    """
    return Scratch(base, prefix="edgetune-board-", mode=0o711)


def serve_host(host: Any, base: str, entry: QueueEntry, *, turn_seconds: float, alive_seconds: float) -> None:
    """Serve one connected host in its own scratch folder, which is removed at the end."""
    adopt_orphans()
    scratch = scratch_for_candidates(base)
    try:
        Session(host, scratch.path, entry, turn_seconds, alive_seconds).serve()
    except (Gone, _HostLeft):
        pass
    except WireError as error:
        with contextlib.suppress(Gone, WireError):
            send(host, {"refused": str(error)})
    finally:
        scratch.close()


def _decrypted(host: Any) -> bool:
    """Tell whether TLS has already decrypted data that `select` does not show at the socket any more."""
    return isinstance(host, ssl.SSLSocket) and host.pending() > 0
