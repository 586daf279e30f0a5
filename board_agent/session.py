"""One host's connection: its requests go to a process that runs kernels, with a limit on time. Start at `serve_host`.

The session sees to what that process cannot: it waits for its host's turn and ends it, says how the process died and
starts another, tells the host that it is alive while a kernel runs or others measure, and reads the board's clocks and
temperature around each measurement.
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

_LOOK_SECONDS = 0.25  # between looks whether the process still runs: what it started may keep its socket open
_LINE_SECONDS = 0.5  # between looks whose turn it is: each takes others' cores for a tenth of a millisecond
_MOMENT = 2.0  # seconds that a session which just ended may need to clear up
_MOST_TURNS = 5  # that a host is given which has not come to measuring
MOST_BYTES = 1 << 30  # of one message from a host
_SAID_BYTES = 4096  # of what the process said last: a candidate may have said a lot
BENCH = ["-m", "board_agent.kernel_server"]  # what Python runs for kernels; a simulated board has another
_ENDS = ("damage", "compare")  # the last of a candidate's requests: before it, a turn's end would lose what was done
_MEASURES = ("call", "repeat", "compare")
# Names of variables of the agent's that a candidate's process gets.
_PASSED = re.compile(
    r"(PATH|LANG|LANGUAGE|LC_\w+|TZ|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|PYTHON(HOME|HASHSEED|PYCACHEPREFIX|UTF8)"
    r"|(OCL_ICD|OPENCL|POCL|PYOPENCL|CUDA|NVIDIA|TVM|OMP|MALI|INTEL|SYCL|NEO|MESA|RUSTICL|EDGETUNE)_\w+|CL_CONFIG_\w+)$"
)
_FREE = ("condition", "start")  # what needs no turn


class KernelProcess:
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
                env=_environment(self.folder),
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
        with contextlib.suppress(OSError), open(self._log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _SAID_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{how}: {said[-200:]}" if said else how


def _environment(folder: str) -> dict[str, str]:
    """Return what drivers, libraries and Python go by, and nothing else of the agent's. NumPy's threads would start
    before a process is confined, and stay outside."""
    return {
        **{name: value for name, value in os.environ.items() if _PASSED.match(name)},
        "HOME": folder,
        "TMPDIR": folder,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),  # Python 3.8 has archives as they were named
    }


class _HostLeft(Exception):
    """It was told that the board is alive, and is not there."""


class _Late(Exception):
    """The process did not do its part within the limit."""


class _Timed:
    """A bench's socket, as frames are sent and received through one: not longer than `limit` seconds, whatever the
    process does with its end. Meanwhile the host hears that the board is alive, and is looked after."""

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
        """Until the process has read, or written, something."""
        ours = [self._bench.socket]
        while (now := time.monotonic()) < self._end:
            pause = min(self._end - now, _LOOK_SECONDS)
            readable, writable, _ = select.select([self._host, *ours[sending:]], ours if sending else [], [], pause)
            if self._host in readable:  # it has nothing to say now: it left
                raise _HostLeft
            self._signs.give()
            if writable or self._bench.socket in readable:
                return
            if self._bench.ended:
                raise Gone("the process ended")
        raise _Late


class _Coming:
    """A host's connection, while a request comes from there: the host hears that it does, or it would take a board for
    gone to which it has sent much through a slow link."""

    def __init__(self, host: Any, alive_seconds: float) -> None:
        self._host, self._signs = host, _Signs(host, alive_seconds)

    def recv(self, size: int) -> bytes:
        data: bytes = self._host.recv(size)
        self._signs.give()
        return data


class _Signs:
    """Tells a host every `seconds`, from now on, that the board is alive."""

    def __init__(self, host: Any, seconds: float) -> None:
        self._host, self._seconds = host, seconds
        self._due = time.monotonic() + seconds

    def give(self) -> None:
        """Send a sign of life if one is due. Raises _HostLeft."""
        if time.monotonic() < self._due:
            return
        try:
            send(self._host, {"alive": True})
        except Gone as gone:
            raise _HostLeft from gone
        self._due = time.monotonic() + self._seconds


class Turn:
    """A host's time on the board. While others wait it is over after `seconds`, and something was measured; sooner or
    later in any case, or the board would be theirs that never measure."""

    def __init__(self, visitor: QueueEntry | Alone, seconds: float) -> None:
        self._visitor, self._seconds = visitor, seconds
        self._began = self._asked = self._looked = time.monotonic()
        self._measured = False

    def answered(self, message: dict[str, Any]) -> None:
        if message.get("do") == "condition":  # as a host asks that has nothing else to ask
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
        return self._visitor.look().waiting > 0


class Session:
    """Answers one host until it is gone, which hears every `alive_seconds` that the board is alive."""

    def __init__(
        self,
        host: Any,
        scratch: str,
        visitor: QueueEntry | Alone,
        turn_seconds: float = TURN_SECONDS,
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._host, self._scratch, self._visitor = host, scratch, visitor
        self._turn_seconds, self._alive_seconds = turn_seconds, alive_seconds
        self._bench: KernelProcess | None = None
        self._turn: Turn | None = None
        self._over = False  # a turn ended, and the host was not told yet

    def serve(self) -> None:
        """Raises Gone or _HostLeft when the host leaves, WireError if it does not keep to the protocol."""
        try:
            line = self._visitor.look()._asdict()
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
        """The next one. A host that has no request when its turn is over loses the board too."""
        while not _decrypted(self._host) and not select.select([self._host], [], [], 1.0)[0]:
            self._end_turn()
        return receive(_Coming(self._host, self._alive_seconds), MOST_BYTES)

    def _end_turn(self) -> None:
        """If it is over."""
        if self._turn is None or not self._turn.is_over():
            return
        if self._bench is not None:
            self._lost()
        self._visitor.rest()
        self._turn, self._over = None, True
        self._visitor.log("turn is over")

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
        """Empty when it has come. Else whoever does not `wait` is told how things stand: it takes nobody's turn."""
        began = alive = time.monotonic()
        if wait:
            self._visitor.wait()
        while (standing := self._visitor.look()).place if wait else not self._visitor.take():
            now = time.monotonic()
            if not wait and now - began >= _MOMENT:
                return {"busy": self._visitor.look()._asdict()}
            if wait and now >= alive:
                send(self._host, {"waiting": standing._asdict()})
                alive = now + self._alive_seconds
            pause = min(_LINE_SECONDS, self._alive_seconds)
            if select.select([self._host], [], [], pause)[0]:  # it has nothing to say now: it left
                raise Gone("the host went away while it waited")
        self._turn, self._over = Turn(self._visitor, self._turn_seconds), False
        self._visitor.log("turn begins")
        return {}

    def _awaited(self, limit: float, message: dict[str, Any] | None = None, parts: Sequence[bytes] = ()) -> Frame:
        """What the process answers, to a message if there is one, all of it within the limit; meanwhile the host hears
        that the board is alive."""
        assert self._bench is not None
        bench = _Timed(self._bench, self._host, limit, self._alive_seconds)
        try:
            if message is not None:
                with contextlib.suppress(Gone):  # noticed when its answer is read
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
    """A folder in which unprivileged processes find folders of their own. Raises OSError."""
    return Scratch(base, prefix="edgetune-board-", mode=0o711)


def serve_host(host: Any, base: str, visitor: QueueEntry, *, turn_seconds: float, alive_seconds: float) -> None:
    """Serve one connected host, in a scratch folder of its own that goes with it."""
    adopt_orphans()
    scratch = scratch_for_candidates(base)
    try:
        Session(host, scratch.path, visitor, turn_seconds, alive_seconds).serve()
    except (Gone, _HostLeft):
        pass
    except WireError as error:
        with contextlib.suppress(Gone, WireError):
            send(host, {"refused": str(error)})
    finally:
        scratch.close()


def _decrypted(host: Any) -> bool:
    """Whether there is something to read that no longer shows at the socket."""
    return isinstance(host, ssl.SSLSocket) and host.pending() > 0
