"""Lets the host talk to boards across the network. Start at `boards`; `pairing` makes a board known, and `link` talks
to it."""

from tuner.devices.board.boards import Board, Boards, Record
from tuner.devices.board.kind import BoardKind
from tuner.devices.board.link import BoardBusy, BoardGone, KernelDied, Link, NotAnswered, NotCompiled, Standing
from tuner.devices.board.names import (
    boards_of,
    kind_on_board,
    name_on_board,
    on_board,
    place_on_board,
    places_on_board,
)
from tuner.devices.board.notices import Notices
from tuner.devices.board.opening import alike, open_to_build, reports
from tuner.devices.board.pairing import Pairing

__all__ = [
    "KIND",
    "Board",
    "BoardBusy",
    "BoardGone",
    "BoardKind",
    "Boards",
    "KernelDied",
    "Link",
    "NotAnswered",
    "NotCompiled",
    "Notices",
    "Pairing",
    "Record",
    "Standing",
    "alike",
    "boards_of",
    "kind_on_board",
    "name_on_board",
    "on_board",
    "open_to_build",
    "place_on_board",
    "places_on_board",
    "reports",
]

KIND = BoardKind()
