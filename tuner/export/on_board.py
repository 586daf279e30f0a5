"""Run an export on the board that it was made for, and compare it with its model there. Start at `BoardNetwork`, or at
`opened_on_board` for a built module.

The agent of the board gets the library, the weights and inputs, and sends the outputs back. It needs NumPy and no TVM.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from tvm.target import Target

from board_agent.timing import Repetition
from tuner.devices import kind_of
from tuner.devices.board import (
    BoardBusy,
    BoardGone,
    Boards,
    KernelDied,
    Link,
    Notices,
    Standing,
    open_to_build,
    place_on_board,
)
from tuner.errors import BadInput, TurnOver, VerificationFailed
from tuner.export.checking import check_nothing, host_target
from tuner.export.exporting import export
from tuner.measure.codegen.toolchain import machine_of
from tuner.module import random_inputs
from tuner.module.cpu_features import missing_on_board
from tuner.module.given import checked_inputs
from tuner.module.manifest import Manifest, read_manifest
from tuner.module.placement import allows

_T = TypeVar("_T")
_LIBRARY, _WEIGHTS, _FIRST = 1, 1, 2  # numbers of the function and of tensors, on the board
_SECONDS = 600.0  # what sending the weights, or an inference, may take
_MEMORY_BYTES = 4 << 30  # what a network may take; the agent allows three quarters of what the board has
_REPETITION = Repetition(least=10, most=30, seconds=5.0)
_WARM_RUNS = 3  # before the first that is timed

Notice = Callable[[str], object]


class BoardNetwork:
    """The export `name` in a folder, which runs on the board of a device named "board:NAME" or "board:NAME/opencl:N".
    It is a context manager that can be called as a module: with arrays by name. `manifest` is that of the export's
    module. `threads` is how many threads of the board's CPU compute (default: as built). `notice` is told where this
    host waits for its turn on the board. If others get the board meanwhile, the network is sent again afterwards."""

    def __init__(
        self,
        device: str,
        folder: Path,
        name: str,
        manifest: Manifest,
        *,
        threads: int | None = None,
        notice: Notice = lambda _: None,
    ) -> None:
        self.manifest = manifest
        self.threads = threads or manifest.threads
        self._device, self._folder, self._name = device, folder, name
        self._title = kind_of(device).called(device)
        self._notice, self._notices = notice, Notices(notice)
        self._is_loaded = False

    def __enter__(self) -> Self:
        """Connect to the board and send it the network. Raises BadInput if that is not possible."""
        with _one_line(self._name, self._device):
            self._link = Link(Boards()[place_on_board(self._device)[0]])
        try:
            self._in_turn(lambda: None)
        except BaseException:
            self._link.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()

    @property
    def cpus(self) -> tuple[int, ...]:
        """Return the numbers of the board's cores that compute."""
        return tuple(self._link.facts["cpus"][: self.threads])

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the network once; see `run`."""
        return self.run(inputs)[0]

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
        """Run the network once. Return its outputs and the seconds that it took on the board.

        Raises VerificationFailed if it writes outside of its outputs. Raises BadInput naming an input that does not
        fit, and if the board cannot run the network.
        """
        given = checked_inputs(self.manifest.inputs, inputs)
        return self._in_turn(lambda: self._run(given))

    def _run(self, given: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
        numbers = self._operands(given)
        answer, _ = self._link.ask({"do": "call", "function": _LIBRARY, "arguments": numbers}, seconds=_SECONDS)
        damage, _ = self._link.ask({"do": "damage", "tensors": numbers})
        if damage["tensor"] is not None:
            raise VerificationFailed(f"{self._name}: on {self._device} a tensor was damaged: {damage['how']}")
        first, outputs = _FIRST + len(self.manifest.inputs), self.manifest.outputs
        entries = self._get(first + len(outputs), (len(outputs),), "int64")
        results = [self._get(first + i, t.shape, t.dtype) for i, t in enumerate(outputs)]
        valid = [slice(int(count)) for count in entries]
        named = {
            t.name: array if t.count is None else array[(slice(None),) * t.count.axis + (part,)]
            for t, array, part in zip(outputs, results, valid, strict=True)
        }
        return named, float(answer["seconds"])

    def seconds(self, inputs: Mapping[str, np.ndarray]) -> float:
        """Return the median seconds of an inference on the board, over some tens of them."""
        return median(self.times(inputs, _REPETITION)[0])

    def times(self, inputs: Mapping[str, np.ndarray], repetition: Repetition) -> tuple[list[float], int]:
        """Repeat inferences on the board. Return at most ten values of seconds, each the median of successive
        inferences, and the number of all."""
        given = checked_inputs(self.manifest.inputs, inputs)
        return self._in_turn(lambda: self._times(given, repetition))

    def _times(self, given: Mapping[str, np.ndarray], repetition: Repetition) -> tuple[list[float], int]:
        numbers = self._operands(given)
        asked = {"do": "repeat", "function": _LIBRARY, "arguments": numbers, "before": _WARM_RUNS}
        answer, _ = self._link.ask({**asked, "repetition": asdict(repetition)}, seconds=_SECONDS)
        times = list(map(float, answer["times"]))
        return times, int(answer.get("calls", len(times)))  # earlier agents do not count

    def _in_turn(self, work: Callable[[], _T]) -> _T:
        """Do some work on the board, where the network is loaded. Where this host's turn ends meanwhile, wait for the
        next one and begin again."""
        while True:
            try:
                with _one_line(self._name, self._device):
                    if not self._is_loaded:
                        self._load()
                    return work()
            except TurnOver:
                self._is_loaded = False

    def _load(self) -> None:
        """Wait for a turn, and send the board the network."""
        settings = {
            "device": place_on_board(self._device)[1],
            "form": "network",
            "threads": self.threads,
            "memory_bytes": _MEMORY_BYTES,
            "network": self._name,
            "inputs": len(self.manifest.inputs),
        }
        self._link.start(settings, _SECONDS, self._waits)
        if self._notices.end():
            self._notice(f"{self._title} runs this network now")
        self._put(_WEIGHTS, np.fromfile(self._folder / f"{self._name}.weights", np.uint8))
        library = (self._folder / f"lib{self._name}.so").read_bytes()
        self._link.ask({"do": "load", "id": _LIBRARY}, [library], _SECONDS)
        self._is_loaded = True

    def _operands(self, inputs: Mapping[str, np.ndarray]) -> Sequence[int]:
        """Send the inputs, make room for the outputs and their numbers of entries, and return the numbers of all
        operands."""
        given = [np.ascontiguousarray(array) for array in inputs.values()]
        rooms = [(t.shape, t.dtype) for t in self.manifest.outputs] + [((len(self.manifest.outputs),), "int64")]
        numbers = range(_FIRST, _FIRST + len(given) + len(rooms))
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

    def _waits(self, standing: Standing) -> None:
        self._notices.tell(standing.waits_for(self._title))


@contextmanager
def _one_line(name: str, device: str) -> Iterator[None]:
    """Turn what a board can answer, except the end of a turn, into one line."""
    try:
        yield
    except (BoardGone, BoardBusy) as error:
        raise BadInput(f"{error}: run this again") from error
    except (KernelDied, RuntimeError, ValueError) as error:
        raise BadInput(f"{name} cannot run on {device}: {error}") from error


@contextmanager
def opened_on_board(
    directory: Path, device: str, *, threads: int | None = None, notice: Notice = lambda _: None
) -> Iterator[BoardNetwork]:
    """Give the module in `directory` as it runs on a board: its export, made for this, is sent there. `threads` and
    `notice` are as in BoardNetwork.

    Raises BadInput for a module that was built for another processor, or that cannot be exported.
    """
    manifest = read_manifest(directory)
    check_processor(directory, manifest, device, threads=threads, notice=notice)
    with tempfile.TemporaryDirectory() as folder:
        name = export(directory, folder, check=check_nothing).name
        with BoardNetwork(device, Path(folder), name, manifest, threads=threads, notice=notice) as network:
            yield network


def check_processor(
    directory: Path,
    manifest: Manifest,
    device: str,
    *,
    threads: int | None = None,
    notice: Notice = lambda _: None,
) -> None:
    """Raise BadInput if a board's device does not run the module in `directory`, or has fewer cores than `threads`.
    `notice` is as in BoardNetwork."""
    with _one_line(str(directory), device), Link(Boards()[place_on_board(device)[0]]) as link:
        facts = link.facts
    board, again = kind_of(device).called(device), f"build it with --device {device}"
    machine, cores = machine_of(host_target(manifest)), len(facts["cpus"])
    if machine != facts["machine"]:
        raise BadInput(f"{directory}: was built for {machine}, and {board} is {facts['machine']}: {again}")
    if missing := missing_on_board(manifest.cpu_features, facts):
        raise BadInput(f"{directory}: was built for a CPU with {', '.join(missing)}, which {board} lacks: {again}")
    if threads is not None and threads > cores:
        raise BadInput(f"--threads {threads}: {board} has {cores} physical core(s)")
    kinds = {"cpu" if p.is_host else p.kind.name for p in manifest.devices}
    asked = place_on_board(device)[1].partition(":")[0]
    if asked not in kinds or kinds - {"cpu", asked}:
        built = " and ".join(p.name for p in manifest.devices)
        raise BadInput(f"{directory}: was built for {built}, not for {device}: name such a device, or {again}")
    _check_driven(directory, manifest, device, notice)


def _check_driven(directory: Path, manifest: Manifest, device: str, notice: Notice) -> None:
    """Raise BadInput if the kernels of a module may use more than a board's OpenCL device allows."""
    driven = [Target(dict(processor.target)) for processor in manifest.devices if not processor.is_host]
    if driven:
        there = open_to_build(device, None, notice)
        if not all(allows(there.target, target) for target in driven):
            raise BadInput(f"{directory}: its kernels may use more than {there.title} allows: build it for that")


def checker(
    device: str, compare: Callable[[BoardNetwork], Mapping[str, float]], notice: Notice = lambda _: None
) -> Callable[[Path, Path, str], dict[str, Any]]:
    """Return a check for `exporting.export` that runs the export on a board. `compare` gets it as a module and returns
    the error of every output. The check returns these errors and the seconds of an inference there. `notice` is as in
    BoardNetwork."""

    def check(directory: Path, folder: Path, name: str) -> dict[str, Any]:
        manifest = read_manifest(directory)
        with BoardNetwork(device, folder, name, manifest, notice=notice) as network:
            errors = dict(compare(network))
            return {"device": device, "errors": errors, "seconds": network.seconds(random_inputs(manifest.inputs, 0))}

    return check
