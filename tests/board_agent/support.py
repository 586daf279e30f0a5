"""A real agent in a process of its own, paired with a host whose configuration is a test's folder."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from board_agent.keys import Hosts
from board_agent.pairing import Code, pair
from tuner.devices.board import Board, Boards, Pairing

NAME = "loop"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Agent:
    """`program`: what Python is to run, `python`: with which interpreter."""

    def __init__(
        self, folder: Path, program: Sequence[str] = ("-m", "board_agent.serve"), python: str = sys.executable
    ):
        self.folder, self.port = folder, free_port()
        self._start = [python, *program]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> None:
        """Returns when it listens."""
        command = [*self._start, "--port", str(self.port), "--folder", str(self.folder / "agent"), *more]
        log = open(self.folder / "agent.log", "a")  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening on"):
                return
        raise AssertionError(f"the agent ended: {self.log()}")

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return 0 if self._process is None else self._process.pid

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def pair(self, boards: Boards, name: str = NAME, *more: str) -> Board:
        """Starts it with the code of a pairing, and more options."""
        return self._paired(boards, name, lambda code: self.start("--pair", code, *more))

    def introduce(self, boards: Boards, name: str = NAME) -> Board:
        """Pairs it while it does not run, or runs already, as another agent in its folder would."""
        hosts = Hosts(self.folder / "agent" / "hosts")
        return self._paired(boards, name, lambda code: pair(Code.parse(code), hosts))

    def _paired(self, boards: Boards, name: str, use: Callable[[str], object]) -> Board:
        with Pairing(boards, name, "127.0.0.1") as pairing:
            found: list[Board] = []
            waiting = threading.Thread(target=lambda: found.append(pairing.wait(self.port)))
            waiting.start()
            use(str(pairing.code))
            waiting.join()
        return found[0]


@contextlib.contextmanager
def paired_agent(folder: Path, boards: Boards | None = None, *more: str) -> Iterator[tuple[Agent, Board]]:
    """Start a paired agent with more options."""
    agent = Agent(folder)
    try:
        yield agent, agent.pair(boards or Boards(folder / "boards"), NAME, *more)
    finally:
        agent.stop()


def eventually(condition, seconds: float = 600.0) -> None:
    """Waits until something that has to happen has happened."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)
