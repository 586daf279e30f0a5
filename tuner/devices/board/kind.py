"""Defines the kind "board:NAME": the devices of boards across the network."""

from __future__ import annotations

import tvm

from tuner.devices.base import Device
from tuner.devices.board.names import PREFIX, on_board, place_on_board
from tuner.devices.board.opening import open_board
from tuner.devices.kind import DeviceKind, Form
from tuner.errors import BadInput


class BoardKind(DeviceKind):
    """Measures on a device of a board, or on that device of several equal boards. `names.kind_on_board` says what it is
    there."""

    name = "board"
    usage = "board:NAME"
    example = PREFIX
    is_remote = True
    takes_threads = True

    def recognises(self, spec: str) -> bool:
        return spec.startswith(PREFIX)

    def open(self, spec: str, threads: int | None) -> Device:
        return open_board(spec, threads)

    def list_here(self) -> list[Device]:
        """Return nothing: `tune board list` lists boards."""
        return []

    def runtime_device(self, spec: str) -> tvm.runtime.Device:
        raise BadInput(f"device {spec}: it is not in this machine, where nothing runs on it")

    def called(self, spec: str) -> str:
        return f"board {place_on_board(spec)[0]}"

    def spec_there(self, spec: str) -> str:
        return place_on_board(spec)[1]

    def form(self, spec: str) -> Form:
        return on_board(spec).form
