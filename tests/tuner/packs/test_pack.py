"""The file of a pack: what was written is read, and nothing else is."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.tuning_db.made import LAPTOP, trial
from tuner.errors import BadInput
from tuner.packs import pack as pack_module
from tuner.packs.keys import public_key
from tuner.packs.pack import read_pack, sorted_out, write_pack
from tuning_db.logs import line_of
from tuning_db.record import DeviceKey, FailureKind, canonical_json

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
BOARD = DeviceKey("cpu", "aarch64-neon", "cortex-a76", {"threads": 4})
TRIALS = [trial(n, minute=n) for n in range(5)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("packs") / "laptop.pack"
    write_pack(path, "laptop", TRIALS, KEY, "five configs")
    return path.read_bytes()


def signed(content: bytes, **changes: Any) -> bytes:
    """A pack whose first line says something else, signed by its maker."""
    head, _, *lines = lzma.decompress(content).split(b"\n")
    head = canonical_json({**json.loads(head), **changes}).encode()
    signature = canonical_json({"signature": base64.b64encode(KEY.sign(head)).decode()}).encode()
    return lzma.compress(b"\n".join([head, signature, *lines]))


def test_what_was_written_is_read(written: bytes) -> None:
    found = read_pack(written, "laptop.pack")
    assert list(found.trials) == TRIALS
    assert (found.name, found.kind, found.family, found.note) == ("laptop", "cpu", LAPTOP.family, "five configs")
    assert found.key == public_key(KEY)
    assert found.models == [LAPTOP.model]
    assert found.what == f"5 configs for cpu {LAPTOP.family} ({LAPTOP.model})"


@given(st.data())
def test_no_change_of_a_byte_goes_unnoticed(written: bytes, data: st.DataObject) -> None:
    text = bytearray(lzma.decompress(written))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadInput, match=r"^x\.pack: "):
        read_pack(lzma.compress(bytes(text)), "x.pack")


@given(st.data())
def test_a_file_that_is_cut_is_refused(written: bytes, data: st.DataObject) -> None:
    with pytest.raises(BadInput, match=r"^x\.pack: is (cut|no pack)"):
        read_pack(written[: data.draw(st.integers(0, len(written) - 1))], "x.pack")


def test_lines_that_are_added_or_left_out_are_noticed(written: bytes) -> None:
    text = lzma.decompress(written)
    more, fewer = text + line_of(trial(9)).encode() + b"\n", text[: text.rstrip(b"\n").rindex(b"\n") + 1]
    for changed in (more, fewer):
        with pytest.raises(BadInput, match="its trials are not those that were signed"):
            read_pack(lzma.compress(changed), "x.pack")


def test_another_key_cannot_take_the_place_of_the_makers(written: bytes) -> None:
    other = public_key(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(BadInput, match="its signature is wrong"):
        read_pack(signed(written, key=other), "x.pack")


def test_a_trial_of_another_family_is_noticed_even_if_it_is_signed(written: bytes) -> None:
    text = lzma.decompress(written)
    body = b"".join(line + b"\n" for line in text.split(b"\n")[2:-1]) + f"{line_of(trial(9, device=BOARD))}\n".encode()
    head = text.split(b"\n")[0]
    changed = lzma.compress(b"\n".join([head, b"{}", body]))
    with pytest.raises(BadInput, match=r"is said to be for cpu .*, and has a trial of cpu aarch64-neon"):
        read_pack(signed(changed, sha256=hashlib.sha256(body).hexdigest()), "x.pack")


def test_a_newer_format_says_what_to_do(written: bytes) -> None:
    with pytest.raises(BadInput, match="is a pack of format 2; this edgetune reads 1: update it"):
        read_pack(signed(written, version=2), "x.pack")


@pytest.mark.parametrize(
    "changes", [{"made": "yesterday"}, {"device": "cpu"}, {"key": "abc"}, {"note": None, "made": 3}, {"sha256": 5}]
)
def test_a_first_line_that_makes_no_sense_is_refused(written: bytes, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"^x\.pack: "):
        read_pack(signed(written, **changes), "x.pack")


@pytest.mark.parametrize(
    "content", [b"", b"hello", lzma.compress(b""), lzma.compress(b"[]\n{}\n"), lzma.compress(b"{}\n1\n")]
)
def test_other_files_are_no_packs(content: bytes) -> None:
    with pytest.raises(BadInput, match=r"^x\.pack: is (no pack|cut)"):
        read_pack(content, "x.pack")


def test_a_small_file_with_endless_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_module, "_MOST_TEXT", 1000)
    with pytest.raises(BadInput, match="is too large for a pack"):
        read_pack(lzma.compress(bytes(5000)), "x.pack")


def test_what_cannot_be_a_pack_is_not_written(tmp_path: Path) -> None:
    for name, trials, says in (
        ("a b", TRIALS, "cannot name a pack"),
        ("none", [], "no config to make a pack of"),
        ("two", [*TRIALS, trial(7, device=BOARD)], "for one family of devices, and these are for 2"),
    ):
        with pytest.raises(BadInput, match=says):
            write_pack(tmp_path / "x.pack", name, trials, KEY)
    assert not list(tmp_path.iterdir())


def test_trials_that_prove_nothing_are_dropped_by_name() -> None:
    failed = trial(2, None, kind=FailureKind.WRONG_ANSWER)
    unchecked, off, old = replace(trial(3), error=None), trial(4, error=0.5), trial(5, version=0)
    taken, dropped = sorted_out(
        [TRIALS[0], failed, unchecked, off, old], lambda t: "" if t.template_version else "it is older"
    )
    assert taken == [TRIALS[0]]
    assert [one.trial for one in dropped] == [failed, unchecked, off, old]
    reasons = ["it failed: wrong_answer", "its result was not checked", "its error was 5.0e-01, and 0.0001 is allowed"]
    assert [one.reason for one in dropped] == [*reasons, "it is older"]
    assert str(dropped[-1]).endswith(f"({old.workload.op} by {old.config.template}): it is older")
