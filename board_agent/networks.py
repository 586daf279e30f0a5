"""This module runs exported networks on the board's CPU or an OpenCL device, without TVM: start at `Networks`.

An export is a library in C (edgetune's `tune export`). Its first argument is the content of its file of weights, which
is followed by the network's inputs, its outputs, and one int64 for each output: how many of its entries are valid.
A library with kernels for OpenCL opens the driver by itself.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from board_agent.backend import Backend, Unusable
from board_agent.guards import Guarded
from board_agent.topology import usable_cpus


class Options(ctypes.Structure):
    """The options of a context, as the header of every export has them."""

    _fields_ = [
        ("threads", ctypes.c_int),
        ("anywhere", ctypes.c_int),
        ("sleepy", ctypes.c_int),
        ("parallel", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("driver", ctypes.c_char_p),
        ("cache", ctypes.c_char_p),
        ("plain_launches", ctypes.c_int),
    ]


class Network:
    """A loaded library, and the context that was made with the last weights."""

    def __init__(self, path: Path, name: str, inputs: int, options: Options) -> None:
        self._library, self._name = ctypes.CDLL(str(path)), name
        self._inputs, self._options = inputs, options
        self._context = ctypes.c_void_p()
        self._weights: Any = None

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, f"{self._name}_{function}")(*arguments)
        if status:
            told = [self._text("text", status), self._text("missing"), self._text("said").partition("\n")[0]]
            raise RuntimeError(f"{self._name}_{function}: {': '.join(filter(None, told))}")

    def _text(self, function: str, *arguments: Any) -> str:
        text = getattr(self._library, f"{self._name}_{function}")
        text.restype = ctypes.c_char_p
        return str((text(*arguments) or b"").decode(errors="replace"))

    def _open(self, weights: Guarded) -> None:
        if self._weights is weights:
            return
        opened = ctypes.c_void_p()
        array = weights.array
        self._call("weights_use", _address(array), ctypes.c_size_t(array.nbytes), ctypes.byref(opened))
        self._call("create", opened, ctypes.byref(self._options), ctypes.byref(self._context))
        self._weights = weights

    def run(self, weights: Guarded, arrays: Sequence[np.ndarray]) -> float:
        """Run the network once, and return its seconds."""
        self._open(weights)
        *buffers, entries = arrays
        parts = buffers[: self._inputs], buffers[self._inputs :]
        addresses = [(ctypes.c_void_p * len(part))(*map(_address, part)) for part in parts]
        start = time.perf_counter()
        self._call("run", self._context, *addresses)
        seconds = time.perf_counter() - start
        count = getattr(self._library, f"{self._name}_entries")
        count.restype = ctypes.c_int64
        entries[...] = [count(self._context, output) for output in range(len(entries))]
        return seconds


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Networks(Backend):
    """A backend whose functions are whole networks. Its tensors are arrays between guards."""

    def __init__(self, number: int, threads: int) -> None:
        self._options = Options(threads=threads, device=number)
        self._name, self._inputs = "", 0

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        self._name, self._inputs = str(settings["network"]), int(settings["inputs"])
        if not self._name.isidentifier():
            raise Unusable(f"{self._name!r} is no name of a network")
        os.environ["POCL_CACHE_DIR"] = str(folder / "compiled")

    def tensor(self, array: np.ndarray) -> Guarded:
        return Guarded(array)

    def array(self, tensor: Guarded) -> np.ndarray:
        return tensor.array

    def is_whole(self, tensor: Guarded) -> bool:
        return tensor.is_whole()

    def fill(self, tensor: Guarded, value: float) -> None:
        tensor.array.fill(value)

    def load(self, path: Path) -> Network:
        return Network(path, self._name, self._inputs, self._options)

    def call(self, function: Network, arguments: Sequence[Guarded]) -> float:
        return function.run(arguments[0], [argument.array for argument in arguments[1:]])


def open_backend(number: int, threads: int, cpus: Sequence[int] | None) -> Networks:
    """Make the backend, for networks with `threads` threads that find the `number`-th OpenCL device, GPUs first."""
    return Networks(number, min(threads, len(usable_cpus() if cpus is None else cpus)))
