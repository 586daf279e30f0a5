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
from typing import Any

import numpy as np
from tvm.target import Target

from board_agent.timing import Repetition
from tuner.devices.board import Boards, Link, name_on_board, open_to_build, places_on_board
from tuner.errors import BadInput, VerificationFailed
from tuner.export.board_session import SECONDS, BoardSession, Notice, one_line
from tuner.export.checking import check_nothing, host_target
from tuner.export.exporting import export
from tuner.measure.codegen.toolchain import machine_of
from tuner.module import random_inputs
from tuner.module.cpu_features import missing_on_board
from tuner.module.given import checked_inputs
from tuner.module.manifest import Manifest, read_manifest
from tuner.module.placement import allows

_LIBRARY, _WEIGHTS, _FIRST = 1, 1, 2  # numbers of the function and of tensors, on the board
_REPETITION = Repetition(least=10, most=30, seconds=5.0)
_WARM_RUNS = 3  # before the first that is timed


class BoardNetwork(BoardSession):
    """The export `name` in a folder, which runs on devices of a board: "board:NAME", "board:NAME/opencl:N" or
    "board:NAME/opencl:N,cpu". It is a context manager that can be called as a module: with arrays by name. `manifest`
    is that of the export's module. `threads` is how many threads of the board's CPU compute (default: as built).
    `notice` is told where this host waits for its turn on the board. If others get the board meanwhile, the network is
    sent again afterwards."""

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
        super().__init__(device, name, notice)
        self.manifest = manifest
        self.threads = threads or manifest.threads
        self._folder, self._name = folder, name

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
        answer, _ = self._link.ask({"do": "call", "function": _LIBRARY, "arguments": numbers}, seconds=SECONDS)
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
        answer, _ = self._link.ask({**asked, "repetition": asdict(repetition)}, seconds=SECONDS)
        times = list(map(float, answer["times"]))
        return times, int(answer.get("calls", len(times)))  # earlier agents do not count

    def _load(self) -> None:
        self._start(self._name, len(self.manifest.inputs), self.threads)
        library, weights = self._folder / f"lib{self._name}.so", self._folder / f"{self._name}.weights"
        self._send(library, _LIBRARY, weights, _WEIGHTS)

    def _operands(self, inputs: Mapping[str, np.ndarray]) -> Sequence[int]:
        """Send the inputs, make room for the outputs and their numbers of entries, and return the numbers of all
        operands."""
        given = [np.ascontiguousarray(array) for array in inputs.values()]
        rooms = [(t.shape, t.dtype) for t in self.manifest.outputs] + [((len(self.manifest.outputs),), "int64")]
        numbers = range(_FIRST, _FIRST + len(given) + len(rooms))
        for number, array in zip(numbers, given, strict=False):
            self._put(number, array)
        for number, (shape, dtype) in zip(numbers[len(given) :], rooms, strict=True):
            self._make_room(number, shape, dtype)
        return [_WEIGHTS, *numbers]


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
    """Raise BadInput if a board's devices do not run the module in `directory`, or have fewer cores than `threads`.
    `notice` is as in BoardNetwork."""
    name, places = places_on_board(device)
    with one_line(str(directory), device), Link(Boards()[name]) as link:
        facts = link.facts
    board, again = f"board {name}", f"build it with --device {device}"
    machine, cores = machine_of(host_target(manifest)), len(facts["cpus"])
    if machine != facts["machine"]:
        raise BadInput(f"{directory}: was built for {machine}, and {board} is {facts['machine']}: {again}")
    if missing := missing_on_board(manifest.cpu_features, facts):
        raise BadInput(f"{directory}: was built for a CPU with {', '.join(missing)}, which {board} lacks: {again}")
    if threads is not None and threads > cores:
        raise BadInput(f"--threads {threads}: {board} has {cores} physical core(s)")
    kinds = {"cpu" if p.is_host else p.kind.name for p in manifest.devices}
    asked = {place.partition(":")[0] for place in places}
    if not asked & kinds or kinds - {"cpu", *asked}:
        built = " and ".join(p.name for p in manifest.devices)
        raise BadInput(f"{directory}: was built for {built}, not for {device}: name such a device, or {again}")
    _check_driven(directory, manifest, name_on_board(name, places[0]), notice)


def _check_driven(directory: Path, manifest: Manifest, gpu: str, notice: Notice) -> None:
    """Raise BadInput if the kernels of a module may use more than a board's OpenCL device allows."""
    driven = [Target(dict(processor.target)) for processor in manifest.devices if not processor.is_host]
    if driven:
        (there,) = open_to_build(gpu, None, notice)
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
