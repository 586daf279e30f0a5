"""This module stores the hosts that the board is paired with, and opens TLS connections with them. Start at `Hosts`.

Every pairing has its own two certificates, made by the host (tuner/devices/board/pairing.py): the board's, with its
key, and the host's. A connecting host names its pairing by the server name that it asks for (SNI). The board shows the
certificate of that pairing and accepts only the certificate of that host. Only TLS 1.3 is allowed.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path
from typing import Any

from board_agent.disk import make_private, whole_file

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
HANDSHAKE_SECONDS = 10.0


class Hosts:
    """A folder that holds the pairings: `NAME/board.pem` (certificate and key) and `NAME/host.pem` for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(p.parent.name for p in self._folder.glob("*/host.pem") if NAME.fullmatch(p.parent.name))

    def add(self, name: str, board: bytes, host: bytes) -> None:
        """Store a pairing and replace an earlier one with that host. Raises ValueError for a name that is not valid."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name")
        place = self._folder / name
        make_private(place)
        for part, content in (("board.pem", board), ("host.pem", host)):
            with whole_file(str(place / part), 0o600) as file:
                file.write(content)

    def accept(self, connection: Any) -> tuple[str, Any]:
        """Do the TLS handshake and return the host's name and the encrypted connection.

        Raises OSError (ssl.SSLError) for a host that is not paired.
        """
        contexts = {name: self._context(name) for name in self.names()}
        if not contexts:
            raise OSError("this board is not paired with any host")
        chosen: list[str] = []

        def choose(link: Any, name: str | None, _: ssl.SSLContext) -> int | None:
            if name not in contexts:
                return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
            chosen.append(str(name))
            link.context = contexts[str(name)]
            return None

        first = server_context()
        first.sni_callback = choose
        # The first context decides whether a certificate is asked for. The chosen one decides which is accepted.
        first.verify_mode = ssl.CERT_REQUIRED
        first.load_cert_chain(str(self._folder / next(iter(contexts)) / "board.pem"))
        connection.settimeout(HANDSHAKE_SECONDS)
        encrypted = first.wrap_socket(connection, server_side=True)
        if not chosen:
            raise OSError("the host did not say whose pairing it means")
        found = encrypted.getpeercert(binary_form=True)
        known = ssl.PEM_cert_to_DER_cert((self._folder / chosen[0] / "host.pem").read_text())
        if found is None or hashlib.sha256(found).digest() != hashlib.sha256(known).digest():
            raise OSError("the host showed another certificate than that of its pairing")
        return chosen[0], encrypted

    def _context(self, name: str) -> ssl.SSLContext:
        context = server_context()
        context.load_cert_chain(str(self._folder / name / "board.pem"))
        context.load_verify_locations(str(self._folder / name / "host.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def server_context() -> ssl.SSLContext:
    """Make a server's TLS context for TLS 1.3 and nothing older, without certificates yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
