"""Reads the names of boards' devices: "board:pi" is the CPU of pi, "board:pi/opencl:0" another device of it. Start at
`place_on_board`, or at `places_on_board` for several devices of one board."""

from __future__ import annotations

from tuner.devices.kind import DeviceKind, OnBoards
from tuner.devices.registry import find_kind, kind_of, kinds_on_boards
from tuner.errors import BadInput

PREFIX = "board:"
_CPU = "cpu"  # where a name has no device


def boards_of(name: str) -> list[str]:
    """Return the devices that the name of several boards means: "board:a+b/opencl:0" means that device of "board:a" and
    that of "board:b"."""
    boards, slash, device = name.removeprefix(PREFIX).partition("/")
    return [PREFIX + board + slash + device for board in boards.split("+")]


def place_on_board(name: str) -> tuple[str, str]:
    """Return the board, and the device there, that a device's name means: "board:pi" is the CPU of pi. Raises BadInput
    for a kind of device that boards do not have, and for a colon in place of the slash."""
    board, _, device = name.removeprefix(PREFIX).partition("/")
    if ":" in board:  # "board:pi:opencl:0"
        raise BadInput(f"device {name}: a slash is before the device: {PREFIX}{board.replace(':', '/', 1)}")
    kind = find_kind(device or _CPU)
    if kind is None or kind.on_boards is None:
        others = " or /".join(kind.usage for kind in kinds_on_boards() if kind.name != _CPU)
        raise BadInput(f"device {name}: give board:{board} for its CPU, board:{board}/{others}")
    return board, device or _CPU


def places_on_board(names: str) -> tuple[str, list[str]]:
    """Return the board, and the devices there, that names with commas between them mean: "board:pi/opencl:0,board:pi"
    means two devices of pi, and so does "board:pi/opencl:0,cpu". Raises BadInput as `place_on_board` does, and for
    devices of several boards."""
    first, *others = (name.strip() for name in names.split(","))
    board, device = place_on_board(first)
    given = [place_on_board(name if name.startswith(PREFIX) else f"{PREFIX}{board}/{name}") for name in others]
    if len(boards_of(first)) > 1 or any(other != board for other, _ in given):
        raise BadInput(f"device {names}: networks are built for one board at a time: name one")
    return board, [device, *(device for _, device in given)]


def name_on_board(board: str, device: str) -> str:
    """Return the name of a board's device; see `place_on_board`."""
    return PREFIX + board + ("" if device == _CPU else f"/{device}")


def kind_on_board(name: str) -> DeviceKind:
    """Return the kind that a board's device has on the board. Raises BadInput as `place_on_board` does."""
    return kind_of(place_on_board(name)[1])


def on_board(name: str) -> OnBoards:
    """Return what describes a board's device. Raises BadInput as `place_on_board` does."""
    found = kind_on_board(name).on_boards
    assert found is not None
    return found
