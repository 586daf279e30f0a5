"""Runs candidates on a board: tensors, functions and calls are requests to its agent. Start at `RemoteExecutor`.

Operands, references and packed weights are made on the host and sent; results come back and are compared on the host.
So a board needs neither templates nor a compiler, and one check serves every device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from board_agent.condition import steady_answer
from board_agent.timing import Repetition
from tuner.devices import flush_every, kind_of
from tuner.devices.board import (
    BoardBusy,
    BoardGone,
    Boards,
    Link,
    Standing,
    alike,
    kind_on_board,
    on_board,
    place_on_board,
)
from tuner.errors import BadInput, DeviceLost
from tuner.measure.messages import ExecutorSettings
from tuner.measure.targets.operand import Fill, Operand

_RUNNING = ("call", "repeat", "compare")
_PREPARE_SECONDS = 120.0  # what sending and storing operands may take on a board


class RemoteTensor:
    """A tensor that lies on a board and has a number there. It is freed with the last reference to this object."""

    def __init__(self, executor: RemoteExecutor, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype, self.number = shape, dtype, executor.number()
        self._dropped = executor.dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)  # the board hears of it with the next request


class RemoteWeight(RemoteTensor):
    """Copies of a weight that lie on a board, where calls take them in turn."""

    def __init__(self, executor: RemoteExecutor, packed: np.ndarray, cold_bytes: int) -> None:
        super().__init__(executor, packed.shape, str(packed.dtype))
        self.nbytes = packed.nbytes * max(1, math.ceil(cold_bytes / max(1, packed.nbytes)))

    def next(self) -> Any:
        """Return this object: the board knows which copy is next."""
        return self


class _Function:
    def __init__(self, executor: RemoteExecutor) -> None:
        self.number = executor.number()
        self._dropped = executor.dropped_functions

    def __del__(self) -> None:
        self._dropped.append(self.number)


class RemoteExecutor:
    """An executor for a board, see `executor.Executor`. Every method may raise DeviceLost, and KernelDied where a
    kernel ended the process that it ran in.

    `throttled` says what slowed the board down during the last measurement, in spite of several tries. `condition` says
    what its clocks and temperature were before and after.
    """

    def __init__(self, settings: ExecutorSettings, waits: Callable[[Standing], object]) -> None:
        board, device = place_on_board(settings.device)
        form = kind_of(settings.device).form(settings.device)
        self._seconds = settings.run_seconds
        # Requests in which a candidate can do harm. Where it is sent as source, the board's driver compiles it on
        # loading.
        self._running = (*_RUNNING, "load") if form == "launches" else _RUNNING
        self._last = 0
        self.throttled, self.condition = "", ""
        self.dropped: list[int] = []
        self.dropped_functions: list[int] = []
        started = {
            "device": device,
            "form": form,
            "threads": settings.threads,
            "memory_bytes": settings.memory_bytes,
        }
        if settings.key is not None:
            started["flush_every"] = flush_every(settings.key.family)
        try:
            self._link = Link(Boards()[board])
            self._link.start(started, _PREPARE_SECONDS, waits)
            described, _ = self._link.ask({"do": "describe"})
            check_is_like(self._link.facts, described, settings)
            is_cpu = kind_on_board(settings.device).is_cpu
            self._cores = self._link.facts["cpus"][: settings.threads] if is_cpu else None
        except (BoardGone, BoardBusy) as error:
            raise DeviceLost(str(error)) from error
        if settings.pool is not None:
            with contextlib.suppress(RuntimeError):  # where the board's C library is older, kernels use TVM's pool
                self._ask({"do": "pool"}, [Path(settings.pool).read_bytes()])

    def number(self) -> int:
        """Return a number that no tensor and no function has yet."""
        self._last += 1
        return self._last

    def _ask(self, message: dict[str, Any], parts: Sequence[Any] = (), seconds: float = _PREPARE_SECONDS) -> Any:
        tensors, functions = self.dropped[:], self.dropped_functions[:]
        try:
            if tensors or functions:
                self._link.ask({"do": "drop", "tensors": tensors, "functions": functions})
                del self.dropped[: len(tensors)], self.dropped_functions[: len(functions)]
            return self._link.ask(message, parts, seconds)
        except BoardGone as error:
            running = message["do"] in self._running and not message.get("reference")
            raise DeviceLost(str(error), running) from error

    def alive(self) -> None:
        try:
            self._link.ask({"do": "condition"})
        except BoardGone as error:
            raise DeviceLost(str(error)) from error

    def _put(self, tensor: RemoteTensor, array: np.ndarray, **more: int | bool) -> None:
        given = {"id": tensor.number, "shape": array.shape, "dtype": str(array.dtype), **more}
        parts = [] if not array.size or not array.any() else [np.ascontiguousarray(array)]
        self._ask({"do": "put", "tensors": [{**given, **({"part": 0} if parts else {})}]}, parts)

    def operand(self, array: np.ndarray, *, written: bool = False) -> Operand:
        made = RemoteTensor(self, array.shape, str(array.dtype))
        self._put(made, array, written=written)
        return Operand(made)

    def damage(self, operands: Sequence[Operand]) -> tuple[int, str] | None:
        numbers = [o.tensor.number for o in operands if not isinstance(o.tensor, RemoteWeight)]
        found, _ = self._ask({"do": "damage", "tensors": numbers})
        if found["tensor"] is None:
            return None
        return next((i, str(found["how"])) for i, o in enumerate(operands) if o.tensor.number == found["tensor"])

    def array(self, tensor: RemoteTensor) -> np.ndarray:
        _, (data,) = self._ask({"do": "get", "tensor": tensor.number})
        return np.frombuffer(data, tensor.dtype).reshape(tensor.shape)

    def cold(self, packed: np.ndarray, cold_bytes: int) -> RemoteWeight:
        made = RemoteWeight(self, packed, cold_bytes)
        self._put(made, packed, cold=cold_bytes)
        return made

    def load(self, library: str) -> _Function:
        made = _Function(self)
        self._ask({"do": "load", "id": made.number}, [Path(library).read_bytes()])
        return made

    def ready(self) -> None:
        self._ask({"do": "ready"})

    def call(self, function: _Function, arguments: Callable[[], Sequence[Any]], fill: Fill = ()) -> None:
        self._ask({"do": "call", **_run(function, arguments), "fill": _numbered(fill)}, seconds=self._seconds)

    def fill(self, fill: Fill) -> None:
        self._ask({"do": "fill", "fill": _numbered(fill)})

    def repeat(
        self,
        function: _Function,
        arguments: Callable[[], Sequence[Any]],
        repetition: Repetition,
        best_seconds: float | None,
        before: int = 0,
    ) -> list[float]:
        how = {"repetition": asdict(repetition), "best_seconds": best_seconds, "before": before}
        answer = self._measured({"do": "repeat", **_run(function, arguments), **how}, self._seconds)
        return [float(t) for t in answer["times"]]

    def _measured(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer of a try in which the board did not slow down or, if there is none, of the last try."""
        answer, self.throttled, self.condition = steady_answer(
            lambda: dict(self._ask(message, seconds=seconds)[0]), self._cores
        )
        return answer

    def steady(
        self, function: _Function, arguments: Callable[[], Sequence[Any]], repetition: Repetition, before: int
    ) -> list[float]:
        how = {"repetition": asdict(repetition), "before": before, "reference": True}
        answer, _ = self._ask({"do": "repeat", **_run(function, arguments), **how}, seconds=self._seconds)
        return [float(t) for t in answer["times"]]

    def compare(
        self, runs: Sequence[tuple[_Function, Callable[[], Sequence[Any]]]], order: Sequence[int]
    ) -> list[list[float]]:
        asked = [list(_run(function, arguments).values()) for function, arguments in runs]
        seconds = self._seconds * len(runs)
        answer = self._measured({"do": "compare", "runs": asked, "order": list(order)}, seconds)
        return [[float(t) for t in times] for times in answer["times"]]


def check_is_like(facts: dict[str, Any], described: dict[str, Any], settings: ExecutorSettings) -> None:
    """Raise BadInput for a board of another kind than the run is for: it came later, or was exchanged."""
    found = on_board(settings.device).key(facts, described, Target(settings.target), settings.threads)
    if settings.key is not None and not alike(found, settings.key):
        raise BadInput(
            f"{settings.device} is {found.family} {found.model}, and this run is for {settings.key.family} "
            f"{settings.key.model}"
        )


def _numbered(fill: Fill) -> list[tuple[int, float]]:
    return [(tensor.number, value) for tensor, value in fill]


def _run(function: _Function, arguments: Callable[[], Sequence[Any]]) -> dict[str, Any]:
    return {"function": function.number, "arguments": [tensor.number for tensor in arguments()]}
