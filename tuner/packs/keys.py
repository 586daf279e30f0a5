"""The key that a user signs packs with, and the keys whose packs the user trusts. Start at `Keys`.

Keys are Ed25519 (RFC 8032). They are kept in the user's configuration, and nobody else vouches for one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from board_agent.disk import make_private, whole_file
from tuner.errors import BadInput

OWN = "me"  # the name of the user's own key, which is always trusted
_KEY = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def public_key(private: Ed25519PrivateKey) -> str:
    """Return the public key, 32 bytes, as 64 hexadecimal digits. It is how people name a key."""
    return private.public_key().public_bytes_raw().hex()


def is_signed(content: bytes, signature: bytes, key: str) -> bool:
    """Tell whether the owner of a public key has signed the content."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_key(text: str) -> str:
    """Return a public key in the form in which it is stored. Raises BadInput if it is none."""
    key = text.strip().lower()
    if not _KEY.fullmatch(key):
        raise BadInput(f"{text!r} is no key: one has 64 hexadecimal digits, as `tune pack check` shows")
    return key


class Keys:
    """Keeps keys in a folder (default: the user's configuration): `own.pem`, and `trusted/NAME` for the others."""

    def __init__(self, folder: Path | None = None) -> None:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = folder or base / "edgetune" / "packs"
        self._own = self._folder / "own.pem"

    def own(self) -> Ed25519PrivateKey:
        """Return the user's own key, which is made at the first call. Raises BadInput if its file cannot be used."""
        try:
            if not self._own.exists():
                self._make_own()
            found = serialization.load_pem_private_key(self._own.read_bytes(), None)
        except OSError as error:
            raise BadInput(f"{self._own}: the key cannot be kept there: {error.strerror}") from error
        except ValueError as error:
            raise BadInput(f"{self._own}: is no private key: move it away, and another is made") from error
        if not isinstance(found, Ed25519PrivateKey):
            raise BadInput(f"{self._own}: is a key of another kind: move it away, and another is made")
        return found

    def _make_own(self) -> None:
        made = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        make_private(self._folder)
        with whole_file(str(self._own), 0o600) as file:
            file.write(made)

    def trusted(self) -> dict[str, str]:
        """Return the names of the trusted keys by key. The user's own is one of them as soon as it exists."""
        own = {public_key(self.own()): OWN} if self._own.exists() else {}
        return {check_key(path.read_text()): path.name for path in self._files()} | own

    def trust(self, key: str, name: str) -> None:
        """Trust the packs that a key signs. Raises BadInput for a name that cannot be used or is another key's."""
        if not NAME.fullmatch(name) or name == OWN:
            raise BadInput(f"{name!r} cannot name a key: give letters, digits, '.', '_' or '-', and not {OWN!r}")
        key = check_key(key)
        known = {path.name: check_key(path.read_text()) for path in self._files()}
        if known.get(name, key) != key:
            raise BadInput(f"{name} is the name of another key: give another one, or `tune pack distrust {name}` first")
        folder = self._folder / "trusted"
        make_private(folder)
        with whole_file(str(folder / name)) as file:
            file.write(f"{key}\n".encode())

    def distrust(self, name: str) -> None:
        """Remove a trusted key. Raises BadInput if none has this name."""
        found = next((path for path in self._files() if path.name == name), None)
        if found is None:
            names = ", ".join(path.name for path in self._files()) or "none"
            raise BadInput(f"no trusted key is named {name!r} (known: {names})")
        found.unlink()

    def _files(self) -> list[Path]:
        return sorted(path for path in (self._folder / "trusted").glob("*") if NAME.fullmatch(path.name))
