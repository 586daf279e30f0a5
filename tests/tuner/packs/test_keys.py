"""Keys: one's own, and those that are trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import BadInput
from tuner.packs.keys import Keys, is_signed, public_key

OTHER = "ab" * 32


def test_the_own_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    first, second = Keys(tmp_path / "packs"), Keys(tmp_path / "packs")
    assert first.trusted() == {}
    key = public_key(first.own())
    assert public_key(second.own()) == key
    assert second.trusted() == {key: "me"}
    assert (tmp_path / "packs" / "own.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "packs").stat().st_mode & 0o777 == 0o700
    assert is_signed(b"text", first.own().sign(b"text"), key)
    assert not is_signed(b"other", first.own().sign(b"text"), key)
    assert not is_signed(b"text", b"short", key)


def test_the_users_configuration_is_where_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    Keys().trust(OTHER, "lab")
    assert (tmp_path / "edgetune" / "packs" / "trusted" / "lab").read_text() == f"{OTHER}\n"


def test_trust_is_given_and_taken(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.trust(OTHER.upper(), "lab")
    keys.trust(OTHER, "lab")
    assert keys.trusted() == {OTHER: "lab"}
    with pytest.raises(BadInput, match="lab is the name of another key"):
        keys.trust("cd" * 32, "lab")
    keys.distrust("lab")
    assert keys.trusted() == {}
    with pytest.raises(BadInput, match=r"no trusted key is named 'lab' \(known: none\)"):
        keys.distrust("lab")


@pytest.mark.parametrize("name", ["", "me", "../own", ".hidden", "a b", "x" * 80])
def test_names_that_are_no_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a key"):
        Keys(tmp_path).trust(OTHER, name)


@pytest.mark.parametrize("key", ["", "ab" * 31, "zz" * 32])
def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadInput, match="is no key: one has 64 hexadecimal digits"):
        Keys(tmp_path).trust(key, "lab")


def test_a_damaged_own_key_is_told(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text("nothing")
    with pytest.raises(BadInput, match=r"own\.pem: is no private key"):
        Keys(tmp_path).own()
