"""Define the errors that end a command, each with its exit status, and errors that the tuner handles itself. Any other
exception that escapes is a programming error."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 300  # characters of a message
_LINE = 240  # characters of a line of a compiler's log


def last_line(error: BaseException) -> str:
    """Return the last line of a library's error message, at most _LONGEST characters. Return the error's type name
    where the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:_LONGEST]


def first_error(log: str) -> str:
    """Return the first line of a compiler's log that contains "error", or its last line if none does, cut to _LINE
    characters."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    line = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it said nothing")
    return line if len(line) <= _LINE else line[: _LINE - 3] + "..."


def choices(names: Sequence[str]) -> str:
    """Return names as a message offers them, such as "cpu, opencl:N or cuda:N"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


class TuneError(Exception):
    """An error that is shown to the user as one clear line: what is wrong, where, and what to do about it."""

    exit_status = 1


class BadInput(TuneError):
    """A file, operator, option or database that cannot be used."""

    exit_status = 2


class NothingMeasured(TuneError):
    """Raised when every candidate failed, so that there is no time to choose a config by."""

    exit_status = 3


class VerificationFailed(TuneError):
    """A built module does not compute what its model says."""

    exit_status = 4


class CompileError(Exception):
    """A device's compiler refused the source; the message is its first error, on one line."""


class SearchFailed(Exception):
    """A library that a searcher uses has failed. This error ends no command by itself, since another searcher can go
    on."""


class DeviceLost(Exception):
    """The board cannot be reached any more, but it may come back. `running` is true if a candidate ran on the board,
    which may be the cause."""

    def __init__(self, message: str, running: bool = False) -> None:
        super().__init__(message)
        self.running = running


class TurnOver(DeviceLost):
    """The run asked for the board at the end of its turn while other runs wait for the board. Nothing is wrong with the
    board."""
