"""Run an export on the board that it was made for, and compare it with its model there. Start at `BoardNetwork`.

The agent of the board gets the library, the weights and inputs, and sends the outputs back. It needs NumPy and no TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np

from board_agent.timing import Repetition
from tuner.devices.board import BoardBusy, BoardGone, Boards, KernelDied, Link, Standing, place_on_board
from tuner.errors import BadInput, TurnOver, VerificationFailed
from tuner.module import random_inputs
from tuner.module.manifest import Manifest, read_manifest

_LIBRARY, _WEIGHTS, _FIRST = 1, 1, 2  # numbers of the function and of tensors, on the board
_SECONDS = 600.0  # what sending the weights, or an inference, may take
_MEMORY_BYTES = 4 << 30  # what a network may take; the agent allows three quarters of what the board has
_REPETITION = Repetition(least=10, most=30, seconds=5.0)


class BoardNetwork:
    """The export `name` in a folder, which runs on the board of a device named "board:NAME". It is a context manager
    that can be called as a module: with arrays by name. `manifest` is that of the export's module."""

    def __init__(self, device: str, folder: Path, name: str, manifest: Manifest) -> None:
        self.manifest = manifest
        self._device, self._folder, self._name = device, folder, name

    def __enter__(self) -> Self:
        """Connect to the board and send it the network. Raises BadInput if that is not possible."""
        board, _ = place_on_board(self._device)
        settings = {
            "device": "cpu",
            "form": "network",
            "threads": self.manifest.threads,
            "memory_bytes": _MEMORY_BYTES,
            "network": self._name,
            "inputs": len(self.manifest.inputs),
        }
        with self._errors():
            self._link = Link(Boards()[board])
        try:
            with self._errors():
                self._link.start(settings, _SECONDS, self._waits)
                self._put(_WEIGHTS, np.fromfile(self._folder / f"{self._name}.weights", np.uint8))
                library = (self._folder / f"lib{self._name}.so").read_bytes()
                self._link.ask({"do": "load", "id": _LIBRARY}, [library], _SECONDS)
        except BaseException:
            self._link.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the network once. Raises VerificationFailed if it writes outside of its outputs, and BadInput if the
        board cannot run it."""
        numbers = self._operands(inputs)
        with self._errors():
            self._link.ask({"do": "call", "function": _LIBRARY, "arguments": numbers}, seconds=_SECONDS)
            damage, _ = self._link.ask({"do": "damage", "tensors": numbers})
            if damage["tensor"] is not None:
                raise VerificationFailed(f"{self._name}: on {self._device} a tensor was damaged: {damage['how']}")
            first, outputs = _FIRST + len(self.manifest.inputs), self.manifest.outputs
            entries = self._get(first + len(outputs), (len(outputs),), "int64")
            results = [self._get(first + i, t.shape, t.dtype) for i, t in enumerate(outputs)]
        valid = [slice(int(count)) for count in entries]
        return {
            t.name: array if t.count is None else array[(slice(None),) * t.count.axis + (part,)]
            for t, array, part in zip(outputs, results, valid, strict=True)
        }

    def seconds(self, inputs: Mapping[str, np.ndarray]) -> float:
        """Return the median seconds of an inference on the board, over some tens of them."""
        numbers = self._operands(inputs)
        asked = {"do": "repeat", "function": _LIBRARY, "arguments": numbers, "before": 3}
        with self._errors():
            answer, _ = self._link.ask({**asked, "repetition": asdict(_REPETITION)}, seconds=_SECONDS)
        return float(median(answer["times"]))

    def _operands(self, inputs: Mapping[str, np.ndarray]) -> Sequence[int]:
        """Send the inputs, make room for the outputs and their numbers of entries, and return the numbers of all
        operands."""
        given = [np.ascontiguousarray(inputs[t.name]) for t in self.manifest.inputs]
        rooms = [(t.shape, t.dtype) for t in self.manifest.outputs] + [((len(self.manifest.outputs),), "int64")]
        numbers = range(_FIRST, _FIRST + len(given) + len(rooms))
        with self._errors():
            for number, array in zip(numbers, given, strict=False):
                self._put(number, array)
            for number, (shape, dtype) in zip(numbers[len(given) :], rooms, strict=True):
                room = {"id": number, "shape": shape, "dtype": dtype, "written": True}
                self._link.ask({"do": "put", "tensors": [room]})
        return [_WEIGHTS, *numbers]

    def _put(self, number: int, array: np.ndarray) -> None:
        tensor = {"id": number, "shape": array.shape, "dtype": str(array.dtype), "part": 0}
        self._link.ask({"do": "put", "tensors": [tensor]}, [array], _SECONDS)

    def _get(self, number: int, shape: Sequence[int], dtype: str) -> np.ndarray:
        _, (data,) = self._link.ask({"do": "get", "tensor": number}, seconds=_SECONDS)
        return np.frombuffer(data, dtype).reshape(shape)

    @staticmethod
    def _waits(standing: Standing) -> None:
        """Wait on: the board's turn queue gives this host its turn."""

    @contextmanager
    def _errors(self) -> Any:
        """Turn what a board can answer into one line."""
        try:
            yield
        except (BoardGone, BoardBusy, TurnOver) as error:
            raise BadInput(f"{error}: run this again") from error
        except (KernelDied, RuntimeError, ValueError) as error:
            raise BadInput(f"{self._name} cannot run on {self._device}: {error}") from error


def checker(
    device: str, compare: Callable[[BoardNetwork], Mapping[str, float]]
) -> Callable[[Path, Path, str], dict[str, Any]]:
    """Return a check for `exporting.export` that runs the export on a board. `compare` gets it as a module and returns
    the error of every output. The check returns these errors and the seconds of an inference there."""

    def check(directory: Path, folder: Path, name: str) -> dict[str, Any]:
        manifest = read_manifest(directory)
        with BoardNetwork(device, folder, name, manifest) as network:
            errors = dict(compare(network))
            return {"device": device, "errors": errors, "seconds": network.seconds(random_inputs(manifest.inputs, 0))}

    return check
