"""Whom the board knows, and TLS with them. Start at `Hosts`.

Every pairing has two certificates of its own, made by the host (tuner/devices/board/pairing.py): the board's, with its
key, and the host's. A host says whose it is by the name it asks for (SNI); the board shows the certificate of that
pairing, and takes none but that host's. TLS 1.3 only.
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
    """The pairings in a folder: `NAME/board.pem` (certificate and key) and `NAME/host.pem`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(p.parent.name for p in self._folder.glob("*/host.pem") if NAME.fullmatch(p.parent.name))

    def add(self, name: str, board: bytes, host: bytes) -> None:
        """Keep a pairing, in the place of an earlier one with that host. Raises ValueError for a name that is none."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name")
        place = self._folder / name
        make_private(place)
        for part, content in (("board.pem", board), ("host.pem", host)):
            with whole_file(str(place / part), 0o600) as file:
                file.write(content)

    def accept(self, connection: Any) -> tuple[str, Any]:
        """The host's name and the encrypted connection. Raises OSError (ssl.SSLError) for anyone that is not paired."""
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
        # Whether a certificate is asked for is a matter of the first context, whose it must be of the chosen one.
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
    """TLS 1.3 and nothing older, without certificates yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
