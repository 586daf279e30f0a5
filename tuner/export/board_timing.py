"""Times kernels, pieces of networks and copies on a board, by exports that its agent runs. Start at `timed_there`, or
at `BoardTiming`, which measures what a plan costs.

Of two exports, one does more than the other, and what it takes more is what that takes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
from tvm.ir import IRModule

from tuner.devices import Device
from tuner.devices.board import BoardBusy, BoardGone, Notices
from tuner.errors import BadInput, last_line
from tuner.export.bare import END, NAME
from tuner.export.board_session import SECONDS, BoardSession, Notice
from tuner.export.chain import Chain
from tuner.export.piece import Piece
from tuner.placement.transfer_timing import remaking

_INPUT, _OUTPUT, _ENTRIES, _WEIGHTS = 1, 2, 3, 4  # numbers of tensors, on the board; those of weights follow
_TRIPS = 16  # from one device to the other and back, in the chain that crosses often
_ADDITIONS = 1 << 19  # that a kernel between two copies makes: a small convolution, where boards are slower
_KERNELS = 2  # that a device is given before the other continues, so that threads wait as they do in a network
_ROUNDS = 10
_TIMES = (1, 4, 16)  # as much is timed in each attempt: where other work disturbs, more of it stands out
_FEW = 1 << 10  # numbers
_REPEATS = 8  # of a piece in an inference
_FLOAT = 4


class Exportable(Protocol):
    """Kernels that can be exported to be timed: a `Chain` or a `Piece`."""

    def export(self, devices: Sequence[Device], folder: Path) -> None:
        """Export for some devices to a folder; see `Bare.export`."""


def timed_there(
    device: str, devices: Sequence[Device], exports: Sequence[Exportable], rounds: int, notice: Notice = lambda _: None
) -> list[float]:
    """Return the seconds that an inference of each export takes on a board: the first decile of `rounds` rounds, which
    comes close to the seconds of an otherwise idle board. In a round each export has its turn, so that other work on
    the board slows all of them. `device` and `notice` are as in BoardSession. `devices` are what `device` names, opened
    by `open_to_build`; the CPU is among them.

    Raises BadInput where the board cannot run them, and what `Bare.export` raises.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, str(i)) for i in range(len(exports))]
        for folder, exported in zip(folders, exports, strict=True):
            folder.mkdir()
            exported.export(devices, folder)
        threads = next(d.threads for d in devices if d.is_host)
        with _Session(device, folders, threads, notice) as session:
            return [sorted(times)[len(times) // 10] for times in session.times(rounds)]


class _Session(BoardSession):
    """A session with the exports in some folders."""

    def __init__(self, device: str, folders: Sequence[Path], threads: int, notice: Notice) -> None:
        super().__init__(device, "what is to be timed", notice)
        self._folders, self._threads = folders, threads

    def _load(self) -> None:
        self._start(NAME, 1, self._threads)
        self._put(_INPUT, np.zeros(END.shape, END.dtype))
        self._make_room(_OUTPUT, END.shape, END.dtype)
        self._make_room(_ENTRIES, (1,), "int64")
        for i, folder in enumerate(self._folders):
            self._send(folder / f"lib{NAME}.so", i, folder / f"{NAME}.weights", _WEIGHTS + i)

    def times(self, rounds: int) -> list[list[float]]:
        """Return the seconds of each export, in each round."""
        runs = [(i, [_WEIGHTS + i, _INPUT, _OUTPUT, _ENTRIES]) for i in range(len(self._folders))]
        asked = {"do": "compare", "runs": runs, "order": [*range(len(runs))] * rounds}
        answer = self._in_turn(lambda: self._link.ask(asked, seconds=SECONDS)[0])
        return [[float(seconds) for seconds in own] for own in answer["times"]]


class BoardTiming:
    """A `placement.timing.Timing` of devices of a board, which `given` names, such as "board:pi/opencl:0,cpu".
    `devices` are the same, opened by `open_to_build`; the CPU has to be among them. `tell` is called with what is being
    measured, and where a turn is waited for.

    Its methods raise BadInput where the board cannot be reached, or other work on it disturbs what is measured.
    """

    def __init__(self, given: str, devices: Sequence[Device], tell: Notice = lambda _: None) -> None:
        self._given, self._devices, self._tell = given, devices, tell
        self._notices = Notices(tell)
        self._names = [device.name for device in devices]
        self._both_ways, self._check = cache(self._crossed), cache(self._run_anything)

    def module(self, module: IRModule, device: Device) -> tuple[float, ...]:
        """Return the seconds of a module's kernels. Raises RuntimeError if they cannot be exported, or the device
        refuses them."""
        self._notices.tell(f"steps and changes of layouts, on {self._given}")
        index = self._names.index(device.name)
        self._check(index)

        def pieces(times: int) -> list[Exportable]:
            return [Piece(module, index, 1 + _REPEATS * times), Piece(module, index)]

        try:
            (seconds,), times = self._more(pieces, f"{self._given}: a piece of the network on {device.name}")
        except BadInput as error:
            if error.__cause__ is None or isinstance(error.__cause__, BoardGone | BoardBusy):
                raise
            raise RuntimeError(last_line(error)) from error
        return (seconds / (_REPEATS * times),)

    def crossings(self, source: Device, target: Device, sizes: Sequence[int]) -> Mapping[int, tuple[float, ...]]:
        """Return the seconds of a copy of each of some sizes, in bytes. Each direction gets half of what there and back
        takes."""
        ends = sorted(self._names.index(device.name) for device in (source, target))
        return {size: (seconds,) for size, seconds in self._both_ways(*ends, tuple(sizes)).items()}

    def _crossed(self, one: int, other: int, sizes: tuple[int, ...]) -> dict[int, float]:
        names = f"{self._names[one]} and {self._names[other]}"
        self._tell(f"copies between {names}, on {self._given}")

        def chains(times: int) -> list[Exportable]:
            made: list[Exportable] = []
            for count in (size // _FLOAT for size in sizes):
                ways = ([(d, remaking(self._devices[d], count, _ADDITIONS))] * _KERNELS for d in (one, other))
                there, back, trips = *ways, _TRIPS * times
                made += [Chain((count,), (there + back) * trips), Chain((count,), there * trips + back * trips)]
            return made

        more, times = self._more(chains, f"{self._given}: the link between {names}")
        return {size: seconds / (2 * _TRIPS * times - 2) for size, seconds in zip(sizes, more, strict=True)}

    def _run_anything(self, device: int) -> None:
        """Raise BadInput where the board runs nothing on a device, so that no piece of a network is blamed for it."""
        kernel = remaking(self._devices[device], _FEW)
        timed_there(self._given, self._devices, [Chain((_FEW,), [(device, kernel)])], 1, self._tell)

    def _more(self, exports: Callable[[int], Sequence[Exportable]], what: str) -> tuple[list[float], int]:
        """Return what each export takes more than the one behind it, for the first, the third and so on, and how many
        times as much as usual is timed in them. `exports` makes them for that."""
        for times in _TIMES:
            taken = timed_there(self._given, self._devices, exports(times), _ROUNDS, self._tell)
            found = [more - less for more, less in zip(taken[::2], taken[1::2], strict=True)]
            if min(found) > 0:
                return found, times
        raise disturbed(what)


def disturbed(what: str) -> BadInput:
    """Return the error for what other work on a board kept from being measured."""
    return BadInput(f"{what} could not be measured, as other work disturbs it: run this again when the board is idle")
