"""A connection to a board's agent: requests and answers, and what can go wrong. Start at `Link`.

The board gives a sign of life every two seconds while it works, and the systems of both ends probe an idle connection:
a board that is gone is noticed within ten seconds, whatever it was doing.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from board_agent.keys import HANDSHAKE_SECONDS
from board_agent.serve import watch
from board_agent.wire import VERSION, Frame, Gone, WireError, receive, send
from tuner.devices.board.boards import Board

SILENCE_SECONDS = 8.0
_MOST_BYTES = 1 << 30


class BoardGone(Exception):
    """The board cannot be reached, the link was cut, or it cannot do anything now (its disk is full): nothing is known
    of what was under way."""


class BoardBusy(Exception):
    """Somebody else measures on it."""


class KernelDied(Exception):
    """The process that runs kernels died of what it was asked to do; it can be started again."""


class NotAnswered(KernelDied):
    """It was still at it when its time was over, and was ended."""


class Link:
    """A context manager. `facts`: what the agent says of its board."""

    def __init__(self, board: Board, seconds: float = HANDSHAKE_SECONDS) -> None:
        """Connects. Raises BoardGone, also for a board that is another than the one that was paired; BoardBusy."""
        self._title = board.title
        try:
            plain = socket.create_connection((board.address, board.port), seconds)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # boards have no names that anybody vouches for: the certificate is compared
            context.load_verify_locations(board.theirs)
            context.load_cert_chain(board.ours)
            self._socket = context.wrap_socket(plain, server_hostname=board.pairing)
        except (OSError, ValueError) as error:
            raise BoardGone(f"board {self._title}: {_why(error)}") from error
        known = ssl.PEM_cert_to_DER_cert(board.theirs.read_text())
        shown = self._socket.getpeercert(binary_form=True) or b""
        if hashlib.sha256(shown).digest() != hashlib.sha256(known).digest():
            self.close()
            raise BoardGone(f"board {self._title}: this is another board than the one that was paired")
        watch(self._socket)
        hello, _ = self._receive()
        if "busy" in hello:
            self.close()
            raise BoardBusy(f"board {self._title}: {hello['busy'].get('host', 'another host')} is measuring there")
        if hello.get("agent") != VERSION:
            self.close()
            raise BoardGone(f"board {self._title}: its agent is of another version than this edgetune: update both")
        self.facts: dict[str, Any] = hello.get("facts", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, message: dict[str, Any], parts: Sequence[Any] = (), seconds: float = 60.0) -> Frame:
        """The answer to a request, which the board is given so many seconds for.

        Raises BoardGone; KernelDied where what runs kernels died, NotAnswered where it had to be ended; RuntimeError
        with one line where the device refused; ValueError where the agent does not understand.
        """
        try:
            send(self._socket, {**message, "seconds": seconds}, parts)
        except (Gone, WireError) as error:
            raise BoardGone(f"board {self._title}: {error}") from error
        answer, more = self._receive()
        while answer.get("alive"):
            answer, more = self._receive()
        if "late" in answer:
            raise NotAnswered(f"no answer within {answer['late']:g} s")
        if "died" in answer:
            raise KernelDied(str(answer["died"]))
        if "unfit" in answer:
            raise BoardGone(f"board {self._title}: {answer['unfit']}")
        if "failed" in answer:
            raise RuntimeError(str(answer["failed"]))
        if "refused" in answer:
            raise ValueError(f"board {self._title} refused: {answer['refused']}")
        return answer, more

    def _receive(self) -> Frame:
        self._socket.settimeout(SILENCE_SECONDS)
        try:
            return receive(self._socket, _MOST_BYTES)
        except (Gone, WireError) as error:
            self.close()
            raise BoardGone(f"board {self._title}: {_why(error)}") from error

    def close(self) -> None:
        self._socket.close()


def _why(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, Gone) else error
    if isinstance(cause, TimeoutError):
        return f"silent for more than {SILENCE_SECONDS:g} s"
    if isinstance(cause, ssl.SSLEOFError):
        return "the connection was closed"
    if isinstance(cause, ssl.SSLError):
        return "it does not know this host, or is another board: pair it again"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there: is `tune board serve` running?"
    return str(error) or "the connection was closed"
