"""Opens a board across the network as a device. Start at `open_board`, or at `open_to_build` for networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm.target import Target

from tuner.devices.base import Device
from tuner.devices.board.boards import Boards
from tuner.devices.board.link import BoardBusy, BoardGone, KernelDied, Link
from tuner.devices.board.names import (
    boards_of,
    kind_on_board,
    name_on_board,
    on_board,
    place_on_board,
    places_on_board,
)
from tuner.devices.board.notices import Notices
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_CPU = "cpu"
_MEMORY_BYTES = 1 << 30  # what asking a driver may take


def open_board(name: str, threads: int | None, notice: Callable[[str], object] = lambda _: None) -> Device:
    """Open the device "board:NAME", or "board:NAME+NAME" for equal boards that share the work. Of several boards, those
    that are away now may come later. `notice` is told where a board's turn is waited for.

    Raises BadInput where a board is not known, none can be reached, or two differ.
    """
    names = boards_of(name)
    if len(set(names)) < len(names):
        raise BadInput(f"device {name}: give different boards")
    boards = [Boards()[board] for board, _ in map(place_on_board, names)]
    found, away = [], []
    for one, board in zip(names, boards, strict=True):
        try:
            with Link(board) as link:
                found.append(_opened(one, link, threads, Notices(notice)))
        except (BoardGone, BoardBusy) as error:
            away.append(str(error))
    if not found:
        raise BadInput("; ".join(away))
    for other in found[1:]:
        if not alike(other.key, found[0].key):
            unlike = f"{_described(other)} is not {_described(found[0])}"
            raise BadInput(f"device {name}: {unlike}: only equal boards share a tuning run")
    return replace(found[0], name=name)


def alike(one: DeviceKey, other: DeviceKey) -> bool:
    """Tell whether two boards may share a tuning run."""
    return (one.family, one.model, one.attrs.get("threads")) == (other.family, other.model, other.attrs.get("threads"))


def open_to_build(names: str, threads: int | None, notice: Callable[[str], object]) -> list[Device]:
    """Open devices of one board to build networks for them (see `places_on_board`). They are named as they are on the
    board, and a GPU's code for the host is code for the board's CPU. `threads` is for the CPU. `notice` is told where
    the board's turn is waited for.

    Raises BadInput as `open_board` and `places_on_board` do.
    """
    board, places = places_on_board(names)
    with_cpu = _CPU in places
    host = open_board(name_on_board(board, _CPU), threads if with_cpu else 1, notice)
    opened = []
    for place in places:
        if place == _CPU:
            opened.append(replace(host, name=place))
        else:
            device = open_board(name_on_board(board, place), None if with_cpu else threads, notice)
            opened.append(replace(device, name=place, target=Target(device.target, host.target)))
    return opened


def reports(name: str, notice: Callable[[str], object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a board's agent says of the board, and what the driver of its device `name`, which is not the CPU,
    says of that. Raises BadInput where the board cannot be reached or has no such device."""
    try:
        with Link(Boards()[place_on_board(name)[0]]) as link:
            return link.facts, _driver_report(name, link, Notices(notice))
    except (BoardGone, BoardBusy) as error:
        raise BadInput(str(error)) from error


def _opened(name: str, link: Link, threads: int | None, notices: Notices) -> Device:
    """Open a device of the board that is linked. Raises BadInput where the board has no such device."""
    if kind_on_board(name).is_cpu:  # the facts describe it
        return on_board(name).device(name, link.facts, {}, threads)
    if threads is not None:
        raise BadInput(f"device {name}: a number of threads is for the CPU; leave it out")
    return on_board(name).device(name, link.facts, _driver_report(name, link, notices), threads)


def _driver_report(name: str, link: Link, notices: Notices) -> dict[str, Any]:
    """Return what the driver of a device of the board that is linked says of it. Raises BadInput where there is no such
    device."""
    board, device = place_on_board(name)
    settings = {"device": device, "form": on_board(name).form, "threads": 1, "memory_bytes": _MEMORY_BYTES}
    try:
        link.start(settings, 60.0, waits=lambda standing: notices.tell(standing.waits_for(f"board {board}")))
        return link.ask({"do": "describe"})[0]
    except (KernelDied, RuntimeError) as error:
        raise BadInput(f"device {name}: {error}") from error


def _described(device: Device) -> str:
    return f"{device.name} ({device.key.family} {device.key.model}, {device.threads} threads)"
