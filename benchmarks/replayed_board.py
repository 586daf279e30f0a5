"""This program is an agent that replays recorded spaces for benchmarks/boards.py.

    python benchmarks/replayed_board.py FOLDER [options of the agent]

It answers a candidate with its recorded times, after as long as measuring them takes. Connections, TLS, turns,
processes and frames are real. FOLDER holds the files that `write` made. This file is also the process that runs
kernels, without TVM. The result of a candidate is its workload's reference, read from a file, and its time is slept.
The reference kernel, by which the device's speed is watched, always takes the same time.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from board_agent import backend, serve, session
from board_agent import kernel_server as bench

MARK = b"replayed "
_KNOWN_GOOD_SECONDS = 2e-5
_SUMS = 1 << 14  # the factor by which tuner.measure.codegen.toolchain's preflight kernel multiplies


def write(folder: Path, answers: Iterable[tuple[str, float, Sequence[float]]]) -> None:
    """Write the answers into FOLDER: for every candidate its key, the seconds that measuring takes, and its times."""
    with sqlite3.connect(folder / "answers.db") as db:
        db.execute("create table answers (key text primary key, seconds real, times text) without rowid")
        db.executemany("insert into answers values (?, ?, ?)", ((k, s, json.dumps(t)) for k, s, t in answers))
    db.close()


def stand_in(key: str, output: str, size: int) -> bytes:
    """Return `size` bytes that are sent instead of a built library.

    `output` is the name of the .npy file in FOLDER that holds what the candidate computes.
    """
    return (MARK + json.dumps([key, output]).encode() + b"\n").ljust(size, b"\0")


class _Candidate:
    def __init__(self, seconds: float, times: list[float], output: np.ndarray) -> None:
        self.seconds, self.times, self.output = seconds, times, output


class ReplayedBackend(backend.Backend):
    """A backend that replays candidates.

    Its tensors are arrays. It keeps only one copy of a weight, because many boards run on this machine.
    """

    def __init__(self, folder: Path) -> None:
        # The files are opened before the process is confined. Many processes read them at once, and none writes.
        self._answers = sqlite3.connect(f"file:{folder / 'answers.db'}?mode=ro&immutable=1", uri=True)
        self._outputs = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}

    def tensor(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def array(self, tensor: np.ndarray) -> np.ndarray:
        return tensor

    def cold(self, array: np.ndarray, cold_bytes: int) -> list[Any]:
        return [self.tensor(array)]

    def load(self, path: Path) -> _Candidate | None:
        data = path.read_bytes()
        if not data.startswith(MARK):
            return None  # the reference kernel, which is known to be good
        key, output = json.loads(data[len(MARK) : data.index(b"\n")])
        row = self._answers.execute("select seconds, times from answers where key = ?", (key,)).fetchone()
        return _Candidate(row[0], json.loads(row[1]), self._outputs[output])

    def use_pool(self, path: Path) -> None:
        """Ignore the thread pool, because nothing runs in parallel here."""

    def call(self, function: _Candidate | None, arguments: Sequence[np.ndarray]) -> float:
        if function is None:
            np.multiply(arguments[0] + 1, _SUMS, out=arguments[1])
            return _KNOWN_GOOD_SECONDS
        np.copyto(arguments[-1], function.output)
        return function.times[0]


class ReplayedBench(bench.KernelServer):
    def _repeat(self, message: dict[str, Any], parts: list[bytes]) -> Any:
        function = self._functions[message["function"]]
        if function is None:
            return {"times": [_KNOWN_GOOD_SECONDS] * 3}, []
        time.sleep(function.seconds)
        return {"times": function.times}, []

    def _compare(self, message: dict[str, Any], parts: list[bytes]) -> Any:
        functions = [self._functions[number] for number, _ in message["runs"]]
        rounds = len(message["order"]) // len(functions)
        time.sleep(sum(f.seconds for f in functions))
        return {"times": [(f.times * rounds)[:rounds] for f in functions]}, []


if __name__ == "__main__":
    known = sys.argv.pop(1)
    if sys.argv[1].isdecimal():  # the number of a socket: a session started this
        replayed = ReplayedBackend(Path(known))
        bench.open_backend = lambda *_: replayed  # type: ignore[assignment]
        bench.KernelServer = ReplayedBench  # type: ignore[misc]
        bench.main()
    else:
        session.KERNEL_SERVER = [__file__, known]
        sys.exit(serve.main())
