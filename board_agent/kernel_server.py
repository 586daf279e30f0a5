"""This is the process that runs kernels: confined, it answers the requests that come as frames on a socket.

A session starts `main`. A candidate may crash this process at any time; then the session tells the host and starts
another one. Start at `KernelServer`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from board_agent.backend import Backend, NotCompiled, Unusable, open_backend
from board_agent.disk import FULL
from board_agent.guards import OVERWRITTEN, WRITTEN_AROUND, digest
from board_agent.sandbox import cap_memory, confine, end_first, leave_shared, limit_memory
from board_agent.timing import Repetition, burst, in_repeats, repeat, undisturbed
from board_agent.topology import memory_bytes
from board_agent.wire import Frame, Gone, receive, send

_MEMORY_SHARE = 0.75  # of the board's memory, which one request may take at most, whatever the host says
_DTYPES = frozenset(
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)


class Refused(Exception):
    """Raised with one line for a request that makes no sense."""


class _Rotation:
    """Copies of one array that calls use in turn."""

    def __init__(self, copies: list[Any]) -> None:
        self._copies, self._at = copies, 0

    def next(self) -> Any:
        self._at = (self._at + 1) % len(self._copies)
        return self._copies[self._at]


class KernelServer:
    """A server that keeps tensors and functions by the numbers that the host gives them, and answers requests."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._backend, self._folder = backend, folder
        self._loaded = 0
        self._held: dict[int, Any] = {}
        self._kept: dict[int, int | None] = {}  # digests of tensors; None where kernels write them
        self._functions: dict[int, Any] = {}
        self._do: dict[str, Callable[[dict[str, Any], list[bytes]], Frame]] = {
            "put": self._put,
            "get": self._get,
            "drop": self._drop,
            "load": self._load,
            "pool": self._pool,
            "ready": self._ready,
            "describe": self._describe,
            "call": self._call,
            "fill": self._fill,
            "damage": self._damage,
            "repeat": self._repeat,
            "compare": self._compare,
        }

    def answer(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        """Carry out a request and return the answer.

        The answer is {"refused": why} for a request that makes no sense, {"failed": why} for an error of the device,
        {"not_compiled": why} for a kernel that the device's compiler refuses, and {"unfit": why} for a full disk.
        """
        try:
            return self._do[message["do"]](message, parts)
        except (Refused, KeyError, TypeError, ValueError, IndexError) as error:
            return {"refused": _line(error)}, []
        except NotCompiled as error:
            return {"not_compiled": str(error)[:300]}, []
        except MemoryError:
            return {"failed": "out of memory"}, []
        except OSError as error:
            if error.errno in FULL:  # a full disk is no candidate's fault
                return {"unfit": f"{self._folder.parent}: {error.strerror}: free some space there"}, []
            return {"failed": _line(error)}, []
        except Exception as error:
            return {"failed": _line(error)}, []

    def _put(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        """Store arrays, or zeros where no data is sent.

        With "cold", store several copies that together exceed that many bytes.
        """
        for given in message["tensors"]:
            array, number, cold = _array(given, parts), int(given["id"]), int(given.get("cold", 0))
            self._kept.pop(number, None)
            if cold:
                self._held[number] = _Rotation(self._backend.cold(array, cold))
            else:
                self._held[number] = self._backend.tensor(array)
                self._kept[number] = None if given.get("written") else digest(array)
        return {}, []

    def _damage(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        """Find the first tensor that a kernel damaged, and say how.

        It is damaged if a kernel wrote outside of it, or wrote to it although kernels only read it.
        """
        for number in message["tensors"]:
            held, kept = self._held[number], self._kept[number]
            if not self._backend.is_whole(held):
                return {"tensor": number, "how": WRITTEN_AROUND}, []
            if kept is not None and digest(self._backend.array(held)) != kept:
                return {"tensor": number, "how": OVERWRITTEN}, []
        return {"tensor": None}, []

    def _get(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        found = np.ascontiguousarray(self._backend.array(self._held[message["tensor"]]))
        return {}, [found.tobytes()]

    def _drop(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        for number in message["tensors"]:
            self._held.pop(int(number), None)
            self._kept.pop(int(number), None)
        for number in message["functions"]:
            self._functions.pop(int(number), None)
        return {}, []

    def _load(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        self._loaded += 1  # each library gets a new name, because the loader would take a known name for the old one
        path = self._written(f"k{self._loaded}.so", parts)
        try:
            self._functions[int(message["id"])] = self._backend.load(path)
        finally:
            path.unlink()  # a library that is loaded stays usable
        return {}, []

    def _pool(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        self._backend.use_pool(self._written("pool.so", parts))
        return {}, []

    def _ready(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        self._backend.ready()
        return {}, []

    def _describe(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        return self._backend.describe(), []

    def _written(self, name: str, parts: list[bytes]) -> Path:
        path = self._folder / name
        try:
            path.write_bytes(parts[0])
        except OSError:
            path.unlink()  # the incomplete file would only keep the disk full
            raise
        return path

    def _call(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        """Fill the tensors of "fill", and then call a function once and return its seconds."""
        self._fill(message, parts)
        return {"seconds": self._run(message["function"], message["arguments"])()}, []

    def _fill(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        """Set all elements of the tensors of "fill" to a value. Their memory and guards stay as they are."""
        for number, value in message.get("fill", []):
            self._backend.fill(self._held[number], value)
        return {}, []

    def _repeat(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        run = self._run(message["function"], message["arguments"])
        for _ in range(int(message.get("before", 0))):
            run()
        times = repeat(run, Repetition(**message["repetition"]), message.get("best_seconds"))
        return {"times": in_repeats(times), "calls": len(times)}, []

    def _compare(self, message: dict[str, Any], parts: list[bytes]) -> Frame:
        """Time several candidates in turns. "order" lists which candidate each turn belongs to."""
        runs = [self._run(number, arguments) for number, arguments in message["runs"]]
        times: list[list[float]] = [[] for _ in runs]
        for turn in message["order"]:
            times[turn].append(burst(runs[turn]))
        return {"times": times}, []

    def _run(self, function: int, arguments: Sequence[int]) -> Callable[[], float]:
        called, held = self._functions[function], [self._held[number] for number in arguments]

        def once() -> float:
            return self._backend.call(called, [h.next() if isinstance(h, _Rotation) else h for h in held])

        return lambda: undisturbed(once)


def _array(given: dict[str, Any], parts: list[bytes]) -> np.ndarray:
    shape, dtype = tuple(int(extent) for extent in given["shape"]), str(given["dtype"])
    if dtype not in _DTYPES or any(extent < 0 for extent in shape):
        raise Refused(f"no tensor is of the shape {shape} and the type {dtype!r}")
    if "part" not in given:
        return np.zeros(shape, dtype)
    data = np.frombuffer(parts[int(given["part"])], dtype)
    return data.reshape(shape)


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def main() -> None:
    """Serve requests until the session ends.

    The program's arguments are the number of the socket, the folder to write in, and the settings as JSON.
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    folder, settings = Path(sys.argv[2]), json.loads(sys.argv[3])
    held = leave_shared()
    gc.disable()  # nothing that imports create needs to be collected
    try:
        backend = open_backend(settings["device"], settings["form"], settings["threads"], settings.get("cpus"))
        end_first()
        held += confine(str(folder))
        installed = memory_bytes()
        most = min(int(settings["memory_bytes"]), int(_MEMORY_SHARE * installed))
        backend.start(folder, settings)
        cap_memory(installed)
    except Unusable as error:
        send(connection, {"failed": str(error)})
        return
    except (KeyError, TypeError, ValueError) as error:
        send(connection, {"refused": f"settings make no sense: {_line(error)}"})
        return
    send(connection, {"contained": held, "pid": os.getpid()})
    bench = KernelServer(backend, folder)
    gc.collect()  # the last collection: none disturbs a measurement, as requests leave no reference cycles behind
    try:
        while True:
            message, parts = receive(connection, most)
            # The limit is meant for what a candidate allocates. Operands may need more, because their copies exceed the
            # cache, however large that is.
            limit_memory(installed if message.get("do") == "put" else most)
            send(connection, *bench.answer(message, parts))
            del message, parts
    except Gone:
        return  # the session ended


if __name__ == "__main__":
    main()
