"""What is compiled here appears whole or not at all, under a name that says what it was made from."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.devices import compiled
from tuner.devices.compiled import digest, made_whole
from tuner.errors import BadInput


def test_a_file_appears_at_the_end_and_nothing_beside_it(tmp_path: Path) -> None:
    wanted = tmp_path / "folder/a.so"
    with made_whole(wanted) as made:
        made.write_text("half")
        assert not wanted.exists()
        made.write_text("whole")
    assert wanted.read_text() == "whole"
    assert list(wanted.parent.iterdir()) == [wanted]


def test_an_older_file_survives_a_failure(tmp_path: Path) -> None:
    wanted = tmp_path / "a.so"
    wanted.write_text("older")

    def fails() -> None:
        with made_whole(wanted) as made:
            made.write_text("half")
            raise RuntimeError("the compiler")

    with pytest.raises(RuntimeError, match="the compiler"):
        fails()
    assert wanted.read_text() == "older"
    assert list(tmp_path.iterdir()) == [wanted]


def test_a_block_that_writes_nothing_leaves_nothing(tmp_path: Path) -> None:
    with made_whole(tmp_path / "a.so"):
        pass
    assert not list(tmp_path.iterdir())


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_tell_apart_how_the_same_bytes_are_cut(a: list[bytes], b: list[bytes]) -> None:
    assert (digest(a) == digest(b)) == (a == b)


def test_without_a_home_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(BadInput, match="set XDG_CACHE_HOME"):
        compiled.cache_folder()


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/of/nobody")
    assert compiled.cache_folder() == Path("/home/of/nobody/.cache/edgetune")
