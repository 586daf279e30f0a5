"""The file of a pack: what it holds, and how it is written, signed and read. Start at `Pack`.

It is a text of JSON lines, compressed by xz. The first line says what is in the file, and has the digest of the trials'
lines. The second is the signature of the first, by the key that the first names. The others are trials, as in a log
(`tuning_db.logs`).
"""

from __future__ import annotations

import base64
import hashlib
import lzma
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from board_agent.parsing import parse_json
from tuner.errors import BadInput
from tuner.files import write_whole
from tuner.packs.keys import NAME, check_key, is_signed, public_key
from tuning_db.errors import DatabaseError
from tuning_db.logs import line_of, trial_of
from tuning_db.record import Trial, canonical_json, tolerance_of
from tuning_db.trial_flags import identity

SUFFIX = ".pack"
FORMAT, VERSION = "edgetune-pack", 1
MOST_BYTES = 1 << 26  # of a file
_MOST_TEXT = 1 << 28  # a small compressed file can hold gigabytes
_XZ = b"\xfd7zXZ\0"  # what such a file begins with


@dataclass(frozen=True)
class Pack:
    """The content of a pack, whose signature is right.

    `kind` and `family` are those of all of its devices. `key` is the public key that it is signed with, `note` what its
    maker says of it.
    """

    name: str
    kind: str
    family: str
    made: datetime
    key: str
    note: str
    trials: tuple[Trial, ...]

    @property
    def models(self) -> list[str]:
        """Return the models of the devices that its trials were measured on."""
        return sorted({trial.device.model for trial in self.trials})

    @property
    def what(self) -> str:
        """Describe what it holds in a few words."""
        count = len(self.trials)
        return f"{count} config{'' if count == 1 else 's'} for {self.kind} {self.family} ({', '.join(self.models)})"


@dataclass(frozen=True)
class Dropped:
    """A trial of a pack that is not taken, and the reason."""

    trial: Trial
    reason: str

    def __str__(self) -> str:
        return f"{identity(self.trial)} ({self.trial.workload.op} by {self.trial.config.template}): {self.reason}"


def write_pack(path: Path, name: str, trials: Sequence[Trial], key: Ed25519PrivateKey, note: str = "") -> Pack:
    """Write a signed pack of trials and return it. Raises BadInput if trials cannot make one, or the file cannot be
    written."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a pack: give letters, digits, '.', '_' or '-'")
    if not trials:
        raise BadInput("there is no config to make a pack of")
    groups = {(trial.device.kind, trial.device.family) for trial in trials}
    if len(groups) > 1:
        raise BadInput(f"a pack is for one family of devices, and these are for {len(groups)}")
    ((kind, family),) = groups
    made = datetime.now(UTC).replace(microsecond=0)
    pack = Pack(name, kind, family, made, public_key(key), note, tuple(trials))
    body = "".join(f"{line_of(trial)}\n" for trial in trials).encode()
    head = canonical_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "name": name,
            "device": {"kind": kind, "family": family},
            "made": made.isoformat(),
            "key": pack.key,
            "note": note,
            "trials": len(trials),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
    ).encode()
    signature = canonical_json({"signature": base64.b64encode(key.sign(head)).decode()}).encode()
    write_whole(path, lzma.compress(b"\n".join([head, signature, body])))
    return pack


def read_pack(content: bytes, title: str) -> Pack:
    """Read the pack that a file called `title` holds.

    Raises BadInput if it is no pack, is damaged, was changed after it was signed, or holds trials of another family of
    devices than it says.
    """
    head, signature, body = _parts(content, title)
    said = _object(head, title, "first")
    if said.get("format") != FORMAT:
        raise BadInput(f"{title}: is no pack")
    if said.get("version") != VERSION:
        raise BadInput(f"{title}: is a pack of format {said.get('version')}; this edgetune reads {VERSION}: update it")
    try:
        key, name, device = check_key(said["key"]), str(said["name"]), said["device"]
        kind, family, made = str(device["kind"]), str(device["family"]), datetime.fromisoformat(said["made"])
        signed = base64.b64decode(_object(signature, title, "second")["signature"], validate=True)
        note, digest = str(said["note"]), said["sha256"]
    except (KeyError, TypeError, ValueError, BadInput) as error:
        raise BadInput(f"{title}: is damaged: its first lines lack what a pack's have ({error})") from error
    if not is_signed(head, signed, key):
        raise BadInput(f"{title}: its signature is wrong: the file is damaged, or was changed after it was signed")
    if hashlib.sha256(body).hexdigest() != digest:
        raise BadInput(f"{title}: its trials are not those that were signed: the file is damaged or was changed")
    trials = tuple(_trials(body, title))
    foreign = next((t.device for t in trials if (t.device.kind, t.device.family) != (kind, family)), None)
    if foreign is not None:
        raise BadInput(
            f"{title}: is said to be for {kind} {family}, and has a trial of {foreign.kind} {foreign.family}"
        )
    return Pack(name, kind, family, made, key, note, trials)


def sorted_out(trials: Iterable[Trial], obsolete: Callable[[Trial], str]) -> tuple[list[Trial], list[Dropped]]:
    """Return the trials that can be taken, and those that cannot. obsolete(trial) says why its template counts no
    longer, or ""."""
    taken, dropped = [], []
    for trial in trials:
        reason = _unproved(trial) or obsolete(trial)
        if reason:
            dropped.append(Dropped(trial, reason))
        else:
            taken.append(trial)
    return taken, dropped


def _unproved(trial: Trial) -> str:
    """Return why the trial does not show that its kernel is right, or ""."""
    if trial.failure is not None:
        return f"it failed: {trial.failure.kind}"
    if trial.error is None:
        return "its result was not checked"
    allowed = tolerance_of(trial.workload.dtype)
    return f"its error was {trial.error:.1e}, and {allowed:g} is allowed" if trial.error > allowed else ""


def _parts(content: bytes, title: str) -> tuple[bytes, bytes, bytes]:
    """Return the first line, the second, and all others."""
    if not content.startswith(_XZ):
        raise BadInput(f"{title}: is no pack")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        text = decompressor.decompress(content, max_length=_MOST_TEXT)
    except lzma.LZMAError as error:
        raise BadInput(f"{title}: is no pack, or is damaged: {error}") from error
    if not decompressor.eof:
        too_long = len(text) >= _MOST_TEXT
        raise BadInput(f"{title}: {'is too large for a pack' if too_long else 'is cut: get it again'}")
    head, first, rest = text.partition(b"\n")
    signature, second, body = rest.partition(b"\n")
    if not first or not second:
        raise BadInput(f"{title}: is no pack: it has fewer lines than one")
    return head, signature, body


def _object(line: bytes, title: str, which: str) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise BadInput(f"{title}: is no pack: its {which} line is not JSON") from error
    if not isinstance(found, dict):
        raise BadInput(f"{title}: is no pack: its {which} line is no JSON object")
    return found


def _trials(body: bytes, title: str) -> Iterable[Trial]:
    known: dict[str, Any] = {}
    for number, line in enumerate(body.splitlines(), 3):
        try:
            yield trial_of(line, known)
        except DatabaseError as error:
            raise BadInput(f"{title}: line {number} is no trial of this edgetune's: {error}") from error
