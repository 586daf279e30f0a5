"""Lets the host talk to boards across the network. Start at `boards`; `pairing` makes a board known, and `link` talks
to it."""

from tuner.devices.board.boards import Board, Boards, Record
from tuner.devices.board.link import BoardBusy, BoardGone, KernelDied, Link, NotAnswered, NotCompiled, Standing
from tuner.devices.board.pairing import Pairing

__all__ = [
    "Board",
    "BoardBusy",
    "BoardGone",
    "Boards",
    "KernelDied",
    "Link",
    "NotAnswered",
    "NotCompiled",
    "Pairing",
    "Record",
    "Standing",
]
