"""Talks to the agent of a board that runs exports: connects, waits for turns, and sends libraries and tensors. Start at
`BoardSession`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from tuner.devices.board import (
    BoardBusy,
    BoardGone,
    Boards,
    KernelDied,
    Link,
    Notices,
    Standing,
    places_on_board,
)
from tuner.errors import BadInput, TurnOver

_T = TypeVar("_T")
SECONDS = 600.0  # what sending the weights, or an inference, may take
_MEMORY_BYTES = 4 << 30  # what a network may take; the agent allows three quarters of what the board has

Notice = Callable[[str], object]


class BoardSession:
    """A connection to the board of a device named "board:NAME", "board:NAME/opencl:N" or "board:NAME/opencl:N,cpu". It
    is a context manager. Subclasses say in `_load` what is sent when a turn begins. `what` runs there, in messages.
    `notice` is told where this host waits for its turn on the board."""

    def __init__(self, device: str, what: str, notice: Notice) -> None:
        self._device, self._what = device, what
        self._board, self._places = places_on_board(device)
        self._notice, self._notices = notice, Notices(notice)
        self._is_loaded = False

    def __enter__(self) -> Self:
        """Connect to the board and send what it is to run. Raises BadInput if that is not possible."""
        with one_line(self._what, self._device):
            self._link = Link(Boards()[self._board])
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

    def _load(self) -> None:
        """Start a process on the board, and send it what it is to run."""
        raise NotImplementedError

    def _in_turn(self, work: Callable[[], _T]) -> _T:
        """Do some work on the board, where everything is loaded. Where this host's turn ends meanwhile, wait for the
        next one and begin again."""
        while True:
            try:
                with one_line(self._what, self._device):
                    if not self._is_loaded:
                        self._load()
                        self._is_loaded = True
                    return work()
            except TurnOver:
                self._is_loaded = False

    def _start(self, name: str, inputs: int, threads: int) -> None:
        """Wait for a turn, and start a process for exports of a name, with so many inputs and threads."""
        settings = {
            "device": self._places[0],  # a network opens the driver by itself, if it has kernels for it
            "form": "network",
            "threads": threads,
            "memory_bytes": _MEMORY_BYTES,
            "network": name,
            "inputs": inputs,
        }
        self._link.start(settings, SECONDS, self._waits)
        if self._notices.end():
            self._notice(f"board {self._board} runs this network now")

    def _send(self, library: Path, number: int, weights: Path, tensor: int) -> None:
        """Send a library, as the function of a number, and its weights, as the tensor of a number."""
        self._put(tensor, np.fromfile(weights, np.uint8))
        self._link.ask({"do": "load", "id": number}, [library.read_bytes()], SECONDS)

    def _put(self, number: int, array: np.ndarray) -> None:
        tensor = {"id": number, "shape": array.shape, "dtype": str(array.dtype), "part": 0}
        self._link.ask({"do": "put", "tensors": [tensor]}, [array], SECONDS)

    def _make_room(self, number: int, shape: Sequence[int], dtype: str) -> None:
        """Make a tensor that is going to be written."""
        room = {"id": number, "shape": shape, "dtype": dtype, "written": True}
        self._link.ask({"do": "put", "tensors": [room]})

    def _get(self, number: int, shape: Sequence[int], dtype: str) -> np.ndarray:
        _, (data,) = self._link.ask({"do": "get", "tensor": number}, seconds=SECONDS)
        return np.frombuffer(data, dtype).reshape(shape)

    def _waits(self, standing: Standing) -> None:
        self._notices.tell(standing.waits_for(f"board {self._board}"))


@contextmanager
def one_line(what: str, device: str) -> Iterator[None]:
    """Turn what a board can answer, except the end of a turn, into one line. Raises BadInput with it."""
    try:
        yield
    except (BoardGone, BoardBusy) as error:
        raise BadInput(f"{error}: run this again") from error
    except (KernelDied, RuntimeError, ValueError) as error:
        raise BadInput(f"{what} cannot run on {device}: {error}") from error
