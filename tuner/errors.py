"""The errors that end a command, each with its exit status. Everything else that escapes is a programming error."""

from __future__ import annotations

_LONGEST = 300  # characters
_LINE = 240  # of a compiler's log


def last_line(error: BaseException) -> str:
    """What a library's error says in the end, as one line; what it is where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:_LONGEST]


def first_error(log: str) -> str:
    """The first line of a compiler's log that says what is wrong, without the place of temporary files."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    line = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it said nothing")
    return line if len(line) <= _LINE else line[: _LINE - 3] + "..."


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


class CompileError(Exception):
    """A device's compiler refused the source; the message is its first error, on one line."""


class SearchFailed(Exception):
    """A library that a searcher uses has failed. Another searcher can go on: it ends no command by itself."""


class DeviceLost(Exception):
    """The board cannot be reached any more; it may come back. `running`: a candidate ran there, and may be why."""

    def __init__(self, message: str, running: bool = False) -> None:
        super().__init__(message)
        self.running = running


class TurnOver(DeviceLost):
    """Others wait for the board, and it was asked for at the end of this run's turn. Nothing is wrong with it."""
