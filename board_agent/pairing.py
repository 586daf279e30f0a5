"""This module is the board's side of pairing with a host: start at `pair`.

A pairing is made once, with the code that `tune board pair` prints on the host. The code holds the host's address, and
a secret and a fingerprint in base 32. The board connects, and the fingerprint proves that it talks to that host and to
nobody in between. The board then sends the secret, and receives both certificates.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
from dataclasses import dataclass

from board_agent.keys import Hosts
from board_agent.wire import Gone, WireError, receive, send

SECRET_BYTES, FINGERPRINT_BYTES = 10, 15
_SECONDS = 10.0
_MOST_BYTES = 1 << 16


class PairingError(Exception):
    """An error that says in one line what is wrong and what to do."""


@dataclass(frozen=True)
class Code:
    """A pairing code, which holds the address of the waiting host, its secret and its fingerprint.

    The fingerprint is the first bytes of the SHA-256 of the host's certificate.
    """

    address: str
    port: int
    secret: bytes
    fingerprint: bytes

    def __str__(self) -> str:
        letters = base64.b32encode(self.secret + self.fingerprint).decode().lower()
        groups = "-".join(letters[i : i + 5] for i in range(0, len(letters), 5))
        return f"{self.address}:{self.port}/{groups}"

    @classmethod
    def parse(cls, text: str) -> Code:
        """Parse a code. Raises PairingError for a text that is no code."""
        place, _, letters = text.strip().partition("/")
        address, _, port = place.rpartition(":")
        try:
            raw = base64.b32decode(letters.replace("-", "").upper())
            if not address or len(raw) != SECRET_BYTES + FINGERPRINT_BYTES or not 0 < int(port) < 65536:
                raise ValueError
        except ValueError as error:
            raise PairingError(f"{text!r} is not a pairing code: copy it as `tune board pair` prints it") from error
        return cls(address, int(port), raw[:SECRET_BYTES], raw[SECRET_BYTES:])


def fingerprint(certificate: bytes) -> bytes:
    """Return the fingerprint of a certificate in DER."""
    return hashlib.sha256(certificate).digest()[:FINGERPRINT_BYTES]


def pair(code: Code, hosts: Hosts) -> str:
    """Pair this board with the host that made the code, and return the host's name. Raises PairingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint proves its identity
    try:
        with socket.create_connection((code.address, code.port), _SECONDS) as plain, context.wrap_socket(plain) as host:
            shown = host.getpeercert(binary_form=True)
            if shown is None or fingerprint(shown) != code.fingerprint:
                raise PairingError(f"{code.address}:{code.port} is not the host that made this code")
            send(host, {"do": "pair", "secret": code.secret.hex()})
            answer, parts = receive(host, _MOST_BYTES)
    except (OSError, Gone, WireError) as error:
        raise PairingError(
            f"{code.address}:{code.port}: {error or 'no answer'}: is `tune board pair` running?"
        ) from error
    if "refused" in answer or len(parts) != 2:
        raise PairingError(f"the host refused: {answer.get('refused', 'it sent no certificates')}")
    hosts.add(str(answer["host"]), parts[0], parts[1])
    return str(answer["host"])
