"""What a power cut, a full disk or an interrupt leaves of a bundle's results."""

from __future__ import annotations

import contextlib
import os
import zipfile
from pathlib import Path

import pytest

from board_agent.journal import LINES, Journal, packed_results

TIMES = {"times": [1e-3]}


def test_half_a_line_is_dropped_and_the_next_begins_where_it_did(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    with Journal(str(folder)) as journal:
        journal.add_result("a", TIMES, [b"1", b"2"])
        journal.add_reference(2e-3)
    whole = (folder / LINES).read_bytes()
    for torn in (b"{", b'{"candidate": "b"}', b"\0" * 40, whole[:50]):
        (folder / LINES).write_bytes(whole + torn)
        with Journal(str(folder)) as journal:
            assert (set(journal.results), journal.reference) == ({"a"}, 2e-3)
            journal.add_result("b", TIMES, [])
        with Journal(str(folder)) as journal:
            assert set(journal.results) == {"a", "b"}
    (folder / LINES).write_bytes(whole[:50])
    with Journal(str(folder)) as journal:
        assert not journal.results
    assert not folder.exists()  # there is nothing in it to keep


def test_only_who_was_running_when_the_machine_went_down_was_begun(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    with Journal(str(folder)) as journal:
        with contextlib.suppress(KeyboardInterrupt), journal.attempt("a"):
            assert b'"begun": "a"' in (folder / LINES).read_bytes()
            raise KeyboardInterrupt
        assert not journal.begun
        with journal.attempt("a"):
            journal.add_result("a", TIMES, [])
        child = os.fork()
        if child == 0:
            with journal.attempt("b"):
                os._exit(0)
        os.waitpid(child, 0)
    with Journal(str(folder)) as journal:
        assert journal.begun == {"a": 1, "b": 1}
        assert set(journal.results) == {"a"}


def test_an_archive_has_its_name_when_all_of_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = str(tmp_path / "r.zip")
    assert packed_results(archive, "one") is None
    with Journal(str(tmp_path / "partial")) as journal:
        journal.add_result("a", TIMES, [b"data"])
        (tmp_path / "partial" / "0123.new").write_bytes(b"what a power cut left")
        journal.pack(archive, "one", {})
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no more")))
            with pytest.raises(OSError, match="no more"):
                journal.pack(archive, "two", {})
        assert sorted(os.listdir(tmp_path)) == ["partial", "r.zip"]
    assert packed_results(archive, "two") is None
    assert [line["candidate"] for line in packed_results(archive, "one") or ()] == ["a"]
    with zipfile.ZipFile(archive) as packed:
        assert sum(name.startswith("outputs/") for name in packed.namelist()) == 1
