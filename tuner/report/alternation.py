"""Runs contenders in processes of their own that take turns: one is timed while all others are stopped (SIGSTOP).

The processes serve blocks of runs (tuner.report.contender.serve); `alternate` asks them in turn.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tuner.errors import TuneError

SLOW_ROUNDS = 3  # timed of a contender whose single run is longer than a block


class ContenderFailed(TuneError):
    """Raised when a contender's process has ended. The message has the last line of its standard error."""

    exit_status = 2


class Timed(Protocol):
    """This takes turns: a contender, or several of one kind that run at the same time."""

    def block(self, seconds: float) -> list[float]:
        """Time a block that lasts about `seconds` (at least one run), and return the seconds of each run."""
        ...


def alternate(
    running: Mapping[str, Timed], rounds: int, block_seconds: float, say: Callable[[str], None]
) -> dict[str, list[list[float]]]:
    """Time all contenders in rounds of blocks, and return each one's blocks of seconds per run.

    Contenders take turns in beginning a round, and the others follow in a random order. In a fixed order, other work on
    the machine would often disturb the same neighbours together.
    """
    names = list(running)
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        first = names[number % len(names)]
        others = [name for name in names if name != first]
        for name in [first, *random.Random(number).sample(others, len(others))]:
            blocks = times[name]
            if len(blocks) >= SLOW_ROUNDS and min(blocks[0]) > block_seconds:
                continue
            blocks.append(running[name].block(block_seconds))
    return times


class Streams:
    """Contenders of one kind, each on CPUs of its own, which run at the same time."""

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self._contenders = contenders
        self.version = contenders[0].version

    @property
    def peak_bytes(self) -> int:
        """Return the sum of the most memory that each of the processes had."""
        return sum(contender.peak_bytes for contender in self._contenders)

    def block(self, seconds: float) -> list[float]:
        """Time a block in all processes at once, and return the seconds of each run of all of them."""
        for contender in self._contenders:
            contender.begin(seconds)
        return [taken for contender in self._contenders for taken in contender.end()]

    def profile(self) -> dict[str, Any]:
        """Return where the first one's time goes."""
        return self._contenders[0].profile()


class Contender:
    """A contender that runs in a process of its own, which is stopped except while it answers."""

    def __init__(self, name: str, command: Sequence[str], threads: int, log: Path) -> None:
        """Start a contender. Raises ContenderFailed if its process ends.

        `command` runs a process that serves (tuner.report.contender.serve). `log` takes its standard error.
        """
        self.name = name
        self.peak_bytes = 0  # the most memory that the process had, as of its last block
        self._log = log
        environment = {**os.environ, "TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                text=True,
            )
        try:
            self.version: str = self._answer()["version"]
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def block(self, seconds: float) -> list[float]:
        """Time a block that lasts about `seconds` (at least one run), and return the seconds of each run."""
        self.begin(seconds)
        return self.end()

    def begin(self, seconds: float) -> None:
        """Begin a block as `block` does, and do not wait for it."""
        self._ask({"block": seconds})

    def end(self) -> list[float]:
        """Wait for the block that was begun, and return the seconds of each run."""
        answer = self._answer()
        self.peak_bytes = int(answer["peak_bytes"])
        return answer["times"]

    def profile(self) -> dict[str, Any]:
        """Return where the time goes. Only a contender that serves a profile answers this request."""
        self._ask({"profile": True})
        return self._answer()

    def _ask(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def _failed(self) -> ContenderFailed:
        self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit status {self._process.returncode}"
        return ContenderFailed(f"{self.name} failed: {why}")

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()
