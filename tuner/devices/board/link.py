"""Connects to a board's agent: it sends requests, receives answers, and says what can go wrong. Start at `Link`.

The board gives a sign of life every two seconds while it works (or as often as it says when it is connected to), and
the systems of both ends probe an idle connection. So a board that is gone is noticed within ten seconds, whatever it
was doing.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from board_agent.defaults import ALIVE_SECONDS, MOST_ALIVE_SECONDS
from board_agent.keys import HANDSHAKE_SECONDS
from board_agent.serve import watch
from board_agent.wire import VERSION, Frame, Gone, WireError, receive, send
from tuner.devices.board.boards import Board
from tuner.errors import TurnOver

_SILENCE = 3.5  # intervals between signs of life: a silence, or sending a piece of a request, may last so long
SILENCE_SECONDS = _SILENCE * ALIVE_SECONDS  # until a board counts as gone, unless it says how often it gives signs
_MOST_BYTES = 1 << 30


class BoardGone(Exception):
    """The board cannot be reached, the link was cut, or the board cannot do anything now (its disk is full). Nothing is
    known of what was under way."""


class BoardBusy(Exception):
    """Somebody else measures on the board, or too many are connected."""


class KernelDied(Exception):
    """The process that runs kernels died of what it was asked to do; it can be started again."""


class NotCompiled(Exception):
    """The board's own compiler refused a kernel."""


class NotAnswered(KernelDied):
    """The kernel exceeded its deadline, and the process that ran it was ended."""


@dataclass(frozen=True)
class Standing:
    """Says how things stand on a board. `place` is how many turns away this host's turn is (0: it does not wait).
    `measures` is the pairing whose turn it is, if any. `waiting` is how many wait."""

    place: int
    measures: str
    waiting: int

    def __str__(self) -> str:
        """Describe the standing, such as "alice-laptop measures, 2 wait"."""
        name = self.measures.rpartition("-")[0] or self.measures  # without what makes a pairing's name unique
        who = f"{name} measures" if name else "nobody measures"
        return f"{who}, {self.waiting} wait" if self.waiting else who

    def waits_for(self, board: str) -> str:
        """Say that this host waits, such as "waiting for board pi: 2nd in line, alice-laptop measures"."""
        return f"waiting for {board}: {_ordinal(self.place)} in line, {self}"


class Link:
    """A connection to a board's agent, which is a context manager. `facts` is what the agent says of its board.
    `standing` says who measured there when the agent said so. `silence_seconds` is the silence after which the board is
    taken for gone."""

    def __init__(self, board: Board, seconds: float = HANDSHAKE_SECONDS) -> None:
        """Connect to the agent. Raises BoardGone, also for a board that is another than the one that was paired, and
        BoardBusy."""
        self._title, self.silence_seconds = board.title, SILENCE_SECONDS
        try:
            plain = socket.create_connection((board.address, board.port), seconds)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # boards have no names that anybody vouches for: the certificate is compared
            context.load_verify_locations(board.theirs)
            context.load_cert_chain(board.ours)
            self._socket = context.wrap_socket(plain, server_hostname=board.pairing)
        except (OSError, ValueError) as error:
            raise self._gone(error) from error
        known = ssl.PEM_cert_to_DER_cert(board.theirs.read_text())
        shown = self._socket.getpeercert(binary_form=True) or b""
        if hashlib.sha256(shown).digest() != hashlib.sha256(known).digest():
            self.close()
            raise BoardGone(f"board {self._title}: this is another board than the one that was paired")
        watch(self._socket)
        hello, _ = self._receive()
        if "full" in hello:
            self.close()
            raise BoardBusy(f"board {self._title}: {hello['full']}")
        if hello.get("agent") != VERSION:
            self.close()
            raise BoardGone(f"board {self._title}: its agent is of another version than this edgetune: update both")
        alive = hello.get("alive", ALIVE_SECONDS)
        if not isinstance(alive, int | float) or not 0 < alive <= MOST_ALIVE_SECONDS:
            self.close()
            raise BoardGone(f"board {self._title}: its agent promises a sign of life every {alive!r} s: start it again")
        self._listen_for(alive)
        self.facts: dict[str, Any] = hello.get("facts", {})
        self.standing = Standing(**hello["line"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self, settings: dict[str, Any], seconds: float, waits: Callable[[Standing], object] | None = None
    ) -> Frame:
        """Start the process that runs kernels. Where others measure, wait in the turn queue and call `waits` every two
        seconds.

        Without `waits`, this raises BoardBusy there. Apart from that it raises what `ask` raises.
        """
        return self.ask({"do": "start", "settings": settings, "wait": waits is not None}, seconds=seconds, waits=waits)

    def ask(
        self,
        message: dict[str, Any],
        parts: Sequence[Any] = (),
        seconds: float = 60.0,
        waits: Callable[[Standing], object] | None = None,
    ) -> Frame:
        """Return the answer to a request, for which the board is given so many seconds.

        Raises BoardGone, and TurnOver where others have the board now. Raises KernelDied where the process that runs
        kernels died, and NotAnswered where it had to be ended. Raises NotCompiled where the board's compiler refused a
        kernel, RuntimeError with one line where the device refused, and ValueError where the agent does not understand.
        """
        try:
            send(self._socket, {**message, "seconds": seconds}, parts)
        except (Gone, WireError) as error:
            raise self._gone(error) from error
        answer, more = self._receive()
        while answer.get("alive") or "waiting" in answer:
            if waits is not None and "waiting" in answer:
                waits(Standing(**answer["waiting"]))
            answer, more = self._receive()
        if "over" in answer:
            raise TurnOver(f"board {self._title}: others wait, and this host's turn of {answer['over']:g} s is over")
        if "busy" in answer:
            raise BoardBusy(f"board {self._title}: {Standing(**answer['busy'])}")
        if "late" in answer:
            raise NotAnswered(f"no answer within {answer['late']:g} s")
        if "died" in answer:
            raise KernelDied(str(answer["died"]))
        if "unfit" in answer:
            raise BoardGone(f"board {self._title}: {answer['unfit']}")
        if "not_compiled" in answer:
            raise NotCompiled(str(answer["not_compiled"]))
        if "failed" in answer:
            raise RuntimeError(str(answer["failed"]))
        if "refused" in answer:
            raise ValueError(f"board {self._title} refused: {answer['refused']}")
        return answer, more

    def _listen_for(self, alive_seconds: float) -> None:
        """Expect signs of life as often as the board gives them."""
        self.silence_seconds = _SILENCE * alive_seconds
        self._socket.settimeout(self.silence_seconds)
        watch(self._socket, alive_seconds)

    def _receive(self) -> Frame:
        self._socket.settimeout(self.silence_seconds)
        try:
            return receive(self._socket, _MOST_BYTES)
        except (Gone, WireError) as error:
            self.close()
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> BoardGone:
        return BoardGone(f"board {self._title}: {_why(error, self.silence_seconds)}")

    def close(self) -> None:
        """End the connection; the board is then free for others."""
        self._socket.close()


def _ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number // 10 == 1 else suffix}"


def _why(error: Exception, silence_seconds: float) -> str:
    cause = error.__cause__ if isinstance(error, Gone) else error
    if isinstance(cause, TimeoutError):
        return f"silent for more than {silence_seconds:g} s"
    if isinstance(cause, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError):
        return "the connection was closed"
    if isinstance(cause, ssl.SSLError):
        return "it does not know this host, or is another board: pair it again"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there: is `tune board serve` running?"
    return getattr(cause, "strerror", None) or str(error) or "the connection was closed"
