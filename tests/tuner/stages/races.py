"""A detector of data races: which kernels of a run in stages touch the same memory without an order between them.

Happens-before by vector clocks (Lamport, 1978; Fidge, 1988): kernels of one stream are in order, a side stream begins
behind what the caller's has so far, and that goes on behind the side streams when they are joined. So a race is found
whether or not the run was unlucky. A group of a stage on the host is a side stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tuner.devices import Device
from tuner.devices.opencl import ASIDE, BACK, JOIN
from tuner.devices.parallel.stage import STAGE, groups_of

_MAIN = 0


@dataclass(frozen=True)
class _Tensor:
    """Where it was, and what it looked like."""

    address: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class _Access:
    """Of one kernel to one address. `place`: its number in its stream; `touched`: the numbers of elements."""

    kernel: str
    stream: int
    place: int
    touched: np.ndarray
    writes: bool


class RaceDetector:
    """`instrument` watches a virtual machine's run; `races` says afterwards what it found. `ordered`: pairs of accesses
    that would be races without the order that was found between them."""

    def __init__(self, device: Device) -> None:
        self._device = device.tvm_device()
        self._calls: list[tuple[str, Any, tuple[Any, ...]]] = []
        self._written: dict[tuple[Any, ...], list[np.ndarray]] = {}
        self.ordered = 0

    def instrument(self, function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        if before and name == STAGE:
            for _, group in groups_of(arguments):
                self._calls.append((ASIDE, None, ()))
                self._calls += [(kernel, compute, tuple(map(_seen, given))) for kernel, compute, given in group]
            self._calls.append((JOIN, None, ()))
        elif before and not name.startswith("vm.builtin."):
            self._calls.append((name, function, tuple(map(_seen, arguments))))
        return 0

    def races(self) -> list[str]:
        """Pairs of kernels and what they do to the same memory."""
        clocks: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        accesses: dict[int, list[_Access]] = defaultdict(list)
        stream, sides, found = _MAIN, 0, []
        for name, function, arguments in self._calls:
            if name == ASIDE:
                sides += 1
                stream = sides
                _join(clocks[stream], clocks[_MAIN])
            elif name == BACK:
                stream = _MAIN
            elif name == JOIN:
                for side in range(1, sides + 1):
                    _join(clocks[_MAIN], clocks[side])
                stream, sides = _MAIN, 0
            else:
                clocks[stream][stream] += 1
                for address, access in self._accesses(name, function, arguments, stream, clocks[stream][stream]):
                    found += self._conflicts(access, accesses[address], clocks[stream])
                    accesses[address].append(access)
        return found

    def _conflicts(self, new: _Access, earlier: Sequence[_Access], clock: dict[int, int]) -> list[str]:
        found = []
        for old in earlier:
            if (old.writes or new.writes) and np.intersect1d(old.touched, new.touched, True).size:
                if clock[old.stream] >= old.place:
                    self.ordered += old.stream != new.stream
                else:
                    found.append(f"{_does(old)} and {_does(new)}")
        return found

    def _accesses(
        self, name: str, function: Any, arguments: Sequence[Any], stream: int, place: int
    ) -> list[tuple[int, _Access]]:
        tensors = [a for a in arguments if isinstance(a, _Tensor)]
        found = []
        for tensor, written in zip(tensors, self._footprints(name, function, arguments), strict=True):
            touched = written if written.size else np.arange(int(np.prod(tensor.shape)))
            found.append((tensor.address, _Access(name, stream, place, touched, bool(written.size))))
        return found

    def _footprints(self, name: str, function: Any, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Which elements of each tensor a kernel writes: those that differ after it ran on tensors of two contents."""
        key = (name, *((a.shape, a.dtype) if isinstance(a, _Tensor) else a for a in arguments))
        if key not in self._written:
            runs = [self._changed(function, arguments, value) for value in (1.0, 2.0)]
            self._written[key] = [np.flatnonzero(one | other) for one, other in zip(*runs, strict=True)]
        return self._written[key]

    def _changed(self, function: Any, arguments: Sequence[Any], value: float) -> list[np.ndarray]:
        rng = np.random.default_rng(int(value))
        before = [(value + rng.random(a.shape)).astype(a.dtype) for a in arguments if isinstance(a, _Tensor)]
        tensors = [tvm.runtime.tensor(array, self._device) for array in before]
        left = iter(tensors)
        function(*(next(left) if isinstance(a, _Tensor) else a for a in arguments))
        self._device.sync()
        return [t.numpy().ravel() != array.ravel() for t, array in zip(tensors, before, strict=True)]


def _seen(argument: Any) -> Any:
    if not isinstance(argument, tvm.runtime.Tensor):
        return argument
    return _Tensor(int(argument.data_ptr()), tuple(int(n) for n in argument.shape), str(argument.dtype))


def _join(clock: dict[int, int], other: dict[int, int]) -> None:
    for stream, place in other.items():
        clock[stream] = max(clock[stream], place)


def _does(access: _Access) -> str:
    return f"{access.kernel} ({'writes' if access.writes else 'reads'}, stream {access.stream})"
