"""The errors that end a command, each with its exit status. Everything else that escapes is a programming error."""

from __future__ import annotations

_LONGEST = 300  # characters


def last_line(error: BaseException) -> str:
    """What a library's error says in the end, as one line; what it is where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:_LONGEST]


class TuneError(Exception):
    """One clear line for the user: what is wrong, where, and what to do."""

    exit_status = 1


class BadInput(TuneError):
    """A file, operator, option or database that cannot be used."""

    exit_status = 2


class NothingMeasured(TuneError):
    """Every candidate failed: there is no time to choose by."""

    exit_status = 3


class VerificationFailed(TuneError):
    """A built module does not compute what its model says."""

    exit_status = 4


class SearchFailed(Exception):
    """A library that a searcher uses has failed. Another searcher can go on: it ends no command by itself."""


class DeviceLost(Exception):
    """The board cannot be reached any more; it may come back. `running`: a candidate ran there, and may be why."""

    def __init__(self, message: str, running: bool = False) -> None:
        super().__init__(message)
        self.running = running


class TurnOver(DeviceLost):
    """Others wait for the board, and it was asked for at the end of this run's turn. Nothing is wrong with it."""
