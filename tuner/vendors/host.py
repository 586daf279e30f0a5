"""Offer a library of CPU kernels as a template. Start at `HostTemplate`, which wraps a `Library`.

The scheduled function only calls back, with the addresses of its tensors, so nothing is copied. A library needs weights
beforehand, to lay them out its own way, while a kernel reads them at every call. So what the kernel reads begins with a
digest of the weights, by which the library's own weights are found. Weights that moved or changed are never mistaken.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.target import Target

from templates import epilogue as steps
from templates.cpu.isa import threads_of
from templates.stages import epilogue_operands
from templates.workloads import anchor_of
from tuner.devices.parallel import open_pools
from tuner.vendors.base import VendorTemplate
from tuning_db.record import Config, Workload

DIGEST = 32 // 4  # length of a SHA-256 digest, in floats
# Weights that are cold in a measurement rotate through copies of their own. The library's weights do so too, with up to
# this many copies.
COPIES = 8
PREPARED, BOUND = 256, 4096  # how many are kept, the latest used
_CORES = os.sched_getaffinity(0)

Call = Callable[[], object]


class Prepared(Protocol):
    """A library's kernel that is ready for one workload and its weights."""

    def bound(self, reads: Sequence[np.ndarray], out: np.ndarray) -> Call:
        """Return a call that computes `out` in place. It reads the data and the operands of "add", whatever they hold
        at the time of the call."""
        ...


class Library(ABC):
    """A library that is installed on this machine. For `exact` see `Template.exact`."""

    name: str
    version: str
    exact: bool = True

    def computes(self, workload: Workload) -> bool:
        """Return whether the library computes this workload, which is float32 and on the CPU."""
        return True

    @abstractmethod
    def prepared(self, workload: Workload, weight: np.ndarray, bias: np.ndarray | None, threads: int) -> Prepared:
        """Prepare a kernel. It may keep `weight` (OIHW, or (out, in)) and `bias`."""


class HostTemplate(VendorTemplate):
    """A template that offers a library for the CPU as one more config of an operator."""

    first_calls = 4 * COPIES  # by then every copy has been met and prepared

    def __init__(self, library: Library, op: str) -> None:
        super().__init__(library.name, library.version, op)
        self.exact = library.exact
        self.spreads_nan = not library.exact
        self._library = library
        tvm_ffi.register_global_func(self.function, _Callback(library))

    def applies(self, workload: Workload, target: Target) -> bool:
        return target.kind.name == "llvm" and self._library.computes(workload)

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return _with_digest(weight)

    def pack_bias(self, workload: Workload, target: Target, bias: np.ndarray) -> np.ndarray:
        return _with_digest(bias)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        anchor = anchor_of(workload)
        data = te.placeholder(anchor.data_shape, name="data")
        weight = te.placeholder((DIGEST + int(np.prod(anchor.weight_shape)),), name="weight")
        extra = epilogue_operands(workload.epilogue, anchor.out_shape)
        for i, token in enumerate(steps.operands(workload.epilogue)):
            if token == "bias":
                extra[i] = te.placeholder((DIGEST + anchor.out_shape[1],), name=f"bias{i}")
        reads = [data, weight, *extra]
        threads = threads_of(target)

        def call(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
            addresses = [buffer.data for buffer in (*ins, *outs)]
            return tirx.call_packed(self.function, workload.key, threads, *addresses)

        out = te.extern([anchor.out_shape], reads, call, name="out", dtype="float32")
        return te.create_prim_func([*reads, out])


def _with_digest(array: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(array, np.float32)
    digest = hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).digest()
    return np.concatenate([np.frombuffer(digest, np.float32), values.ravel()])


class _Callback:
    """The function that a library's kernels call. Its arguments are the workload's key, the number of threads, and the
    addresses of the data, the weight, the operands of the epilogue and the output."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._constants: dict[str, tuple[int, ...]] = {}  # which of the addresses are the weight's and the bias's
        self._prepared: OrderedDict[tuple[Any, ...], Prepared] = OrderedDict()
        self._bound: OrderedDict[tuple[Any, ...], Call] = OrderedDict()

    def __call__(self, key: str, threads: int, *pointers: ctypes.c_void_p) -> None:
        addresses = [p.value or 0 for p in pointers]
        constants = self._constants.get(key) or self._constants_of(key)
        digest = b"".join(ctypes.string_at(addresses[i], 4 * DIGEST) for i in constants)
        kernel = key, threads, digest, _scattered(addresses[constants[0]])
        known = *kernel, *(a for i, a in enumerate(addresses) if i not in constants)
        call = self._bound.get(known)
        with _cores_free() if threads > 1 else nullcontext():
            if call is None:
                self._bind(kernel, known, [addresses[i] for i in constants])
            else:
                self._bound.move_to_end(known)
                call()

    def _constants_of(self, key: str) -> tuple[int, ...]:
        tokens = steps.operands(Workload.from_dict(json.loads(key)).epilogue)
        self._constants[key] = (1, *(2 + i for i, token in enumerate(tokens) if token == "bias"))
        return self._constants[key]

    def _bind(self, kernel: tuple[Any, ...], known: tuple[Any, ...], constants: Sequence[int]) -> None:
        """Prepare the kernel and the call that are not cached yet, and make the call."""
        workload, threads = Workload.from_dict(json.loads(kernel[0])), kernel[1]
        anchor = anchor_of(workload)
        data, *adds, out = known[len(kernel) :]
        with _on_all_cores():
            if kernel not in self._prepared:
                weight, *biases = (address + 4 * DIGEST for address in constants)
                bias = _array(biases[0], (anchor.out_shape[1],)).copy() if biases else None
                values = _array(weight, anchor.weight_shape).copy()
                _keep(self._prepared, kernel, self._library.prepared(workload, values, bias, threads), PREPARED)
            reads = [_array(data, anchor.data_shape), *(_array(add, anchor.out_shape) for add in adds)]
            call = self._prepared[kernel].bound(reads, _array(out, anchor.out_shape))
            call()  # a library's threads inherit the cores of the thread that starts them
        _keep(self._bound, known, call, BOUND)


def _scattered(address: int) -> int:
    """Return which of the copies an address belongs to. Copies are told apart whatever the distance of the weights
    (Fibonacci hashing, Knuth, TAOCP 3, section 6.4)."""
    return (address // 64 * 2654435769 % (1 << 32)) * COPIES >> 32


def _array(address: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the memory at an address as an array of float32."""
    floats = ctypes.c_float * int(np.prod(shape))
    return np.ctypeslib.as_array(floats.from_address(address)).reshape(shape)


def _keep(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)


@contextmanager
def _cores_free() -> Iterator[None]:
    """Keep our threads from waiting on their cores for the next loop. The library's time includes calling them back."""
    pools = open_pools()
    for pool in pools:
        pool.rest()
    try:
        yield
    finally:
        for pool in pools:
            pool.rise()


@contextmanager
def _on_all_cores() -> Iterator[None]:
    """Let the calling thread, wherever it is held, use all cores that the process began with."""
    held = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, held)
