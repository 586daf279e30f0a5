"""The host's side of a pairing: both certificates, the code, and one short wait for the board. Start at `Pairing`.

No certificate is made by hand, and no third party vouches for one: each side keeps the other's. They have no date on
which they begin or end, as many boards have no clock that knows the date after a power cut; a pairing ends by
`tune board forget`.
"""

from __future__ import annotations

import datetime
import getpass
import hmac
import os
import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from board_agent.keys import HANDSHAKE_SECONDS, server_context
from board_agent.pairing import SECRET_BYTES, Code, fingerprint
from board_agent.wire import Gone, WireError, receive, send
from tuner.devices.board.boards import Board, Boards, check_name
from tuner.errors import BadInput

_ATTEMPTS = 5
_MOST_VISITORS = 4  # at a time: the first that came leaves for the next
_LOOK_SECONDS = 0.05
_MOST_BYTES = 1 << 12
_ALWAYS = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)


def certificate(name: str) -> tuple[bytes, bytes]:
    """A certificate that vouches for itself, in PEM, and the same followed by its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_ALWAYS[0])
        .not_valid_after(_ALWAYS[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return public, public + private


class _Visitor:
    """One who has connected, looked at in a thread of its own: others do not wait for it, and its connection ends after
    a handshake's time, however slowly it sends."""

    def __init__(self, plain: socket.socket, peer: Any, admit: Callable[[socket.socket], bool | None]) -> None:
        self._handle = plain.dup()  # TLS takes the socket itself away
        self.address = str(peer[0])
        self._end = time.monotonic() + HANDSHAKE_SECONDS
        self._found: list[bool | None] = [None]
        plain.settimeout(HANDSHAKE_SECONDS)
        self._thread = threading.Thread(target=self._look, args=(admit, plain), daemon=True)
        self._thread.start()

    def _look(self, admit: Callable[[socket.socket], bool | None], plain: socket.socket) -> None:
        with plain:
            self._found[0] = admit(plain)

    @property
    def is_done(self) -> bool:
        """Whether it is known, or its time is over."""
        return not self._thread.is_alive() or time.monotonic() > self._end

    def admitted(self) -> bool | None:
        """Whether it showed the secret, None where it showed nothing; ends its connection."""
        if self._thread.is_alive():
            with suppress(OSError):
                self._handle.shutdown(socket.SHUT_RDWR)  # closing it would not wake the thread
        self._thread.join()
        self._handle.close()
        return self._found[0]


class Pairing:
    """Listens for one board. A context manager; `code` is what the board is to be given."""

    def __init__(
        self,
        boards: Boards,
        name: str,
        address: str,
        port: int = 0,
        seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address`: of this host, as the board sees it. Raises BadInput if it cannot be listened on."""
        self._boards, self._name, self._clock, self._seconds = boards, check_name(name), clock, seconds
        self._pairing = f"{_own_name()}-{secrets.token_hex(4)}"
        self._host, self._board = certificate(self._pairing), certificate(name)
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._end = clock() + seconds
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._listener = socket.create_server((address, port), family=family)
        except OSError as error:
            raise BadInput(
                f"{address}:{port}: cannot be listened on ({error.strerror}): give this host's own address"
            ) from error
        shown = ssl.PEM_cert_to_DER_cert(self._host[0].decode())
        self.code = Code(address, self._listener.getsockname()[1], self._secret, fingerprint(shown))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def wait(self, port: int) -> Board:
        """Until the board comes; `port`: where its agent is going to listen. Raises BadInput when the code has expired,
        or was tried wrongly too often."""
        context = self._context()
        visitors: list[_Visitor] = []
        wrong = 0
        try:
            while wrong < _ATTEMPTS:
                left = self._end - self._clock()
                if left <= 0:
                    raise BadInput(f"the code expired after {self._seconds:g} s: `tune board pair` makes another")
                self._listener.settimeout(min(left, _LOOK_SECONDS if visitors else 1.0))
                with suppress(TimeoutError):
                    visitors.append(_Visitor(*self._listener.accept(), partial(self._admit, context)))
                oldest = visitors[: len(visitors) - _MOST_VISITORS] if len(visitors) > _MOST_VISITORS else []
                for visitor in [v for v in visitors if v.is_done or v in oldest]:
                    visitors.remove(visitor)
                    admitted = visitor.admitted()
                    if admitted:
                        return self._boards.add(
                            self._name, visitor.address, port, self._pairing, self._host[1], self._board[0]
                        )
                    wrong += admitted is not None
        finally:
            for visitor in visitors:
                visitor.admitted()
        raise BadInput(f"{_ATTEMPTS} wrong attempts: `tune board pair` makes another code")

    def _context(self) -> ssl.SSLContext:
        context = server_context()
        with tempfile.TemporaryDirectory() as folder:  # ssl takes keys from files alone
            file = Path(folder) / "host.pem"
            file.touch(0o600)
            file.write_bytes(self._host[1])
            context.load_cert_chain(file)
        return context

    def _admit(self, context: ssl.SSLContext, plain: socket.socket) -> bool | None:
        try:
            with context.wrap_socket(plain, server_side=True) as board:
                message, _ = receive(board, _MOST_BYTES)
                shown = str(message.get("secret", ""))
                if not hmac.compare_digest(shown.encode(), self._secret.hex().encode()):
                    send(board, {"refused": "this is not the code, or not any more"})
                    return False
                send(board, {"host": self._pairing}, [self._board[1], self._host[0]])
                return True
        except (OSError, Gone, WireError):
            return None


def _own_name() -> str:
    """Of the user on this host: others who wait for the board see it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = str(os.getuid())
    named = f"{user}-{socket.gethostname().split('.')[0]}".lower()
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in named)
    return letters.strip("-")[:40] or "host"


def own_address() -> str:
    """Of the interface that leads out of this machine; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
