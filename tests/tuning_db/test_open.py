"""What cannot be opened: one clear line, and the file (and its folder) as they were."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.tuning_db.made import trial
from tuning_db.store import DatabaseError, open_db


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def refused(url: str | Path, read_only: bool = False, create: bool = True) -> str:
    with pytest.raises(DatabaseError) as caught:
        open_db(url, create=create, read_only=read_only)
    message = str(caught.value)
    assert "\n" not in message
    return message


def filled(path: Path, count: int = 50) -> Path:
    with open_db(path) as store:
        store.add_many(trial(tile) for tile in range(count))
    return path


def _text(path: Path) -> None:
    path.write_text("these are my notes\n" * 100)


def _onnx(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])), path)


def _other_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE bookmarks (url TEXT); INSERT INTO bookmarks VALUES ('x');")


def _other_sqlite_in_wal_mode(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript("CREATE TABLE bookmarks (url TEXT); INSERT INTO bookmarks VALUES ('x');")


def _few_bytes(path: Path) -> None:
    path.write_bytes(b"SQLi")


def _only_header(path: Path) -> None:
    path.write_bytes(filled(path).read_bytes()[:100])


def _half(path: Path) -> None:
    content = filled(path, 2000).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _noise_behind_magic(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + random.Random(1).randbytes(8192))


def _newer(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v9999'")


BAD_FILES: list[tuple[Callable[[Path], None], str]] = [
    (_text, "not a tuning database"),
    (_onnx, "not a tuning database"),
    (_other_sqlite, "is an SQLite database, but not a tuning database"),
    (_other_sqlite_in_wal_mode, "is an SQLite database, but not a tuning database"),
    (_few_bytes, "truncated"),
    (_only_header, "truncated"),
    (_half, "truncated"),
    (_noise_behind_magic, "damaged|truncated|not a tuning database"),
    (_newer, "written by a newer edgetune .*upgrade"),
]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(("make", "words"), BAD_FILES, ids=[make.__name__ for make, _ in BAD_FILES])
def test_a_bad_file_is_refused_and_left_as_it_was(
    path: Path, make: Callable[[Path], None], words: str, read_only: bool
) -> None:
    import re

    make(path)
    before = snapshot(path.parent)
    message = refused(path, read_only)
    assert re.search(words, message), message
    assert path.name in message
    assert snapshot(path.parent) == before


def test_a_newer_database_with_an_unfinished_log_is_refused_too(path: Path) -> None:
    """As a killed writer leaves it: the version is in the log only."""
    filled(path)
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute(\"UPDATE alembic_version SET version_num = 'v9999'\"); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.with_name(path.name + "-wal").stat().st_size > 0
    assert "newer edgetune" in refused(path)
    assert "newer edgetune" in refused(path)


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "the folder" in refused(tmp_path / "no" / "t.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)


@pytest.mark.parametrize("options", [{"read_only": True}, {"create": False}])
def test_nothing_is_created_unless_asked(path: Path, options: dict[str, bool]) -> None:
    assert "there is no tuning database at" in refused(path, **options)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "does not name a database file"),
        (":memory:", "does not name a database file"),
        ("sqlite://", "does not name a database file"),
        ("a\0b", "does not name a database file"),
        ("x" * 5000, "cannot be opened"),
        ("mysql://root@host/db", "not supported"),
        ("://", "cannot be parsed"),
        ("postgresql://nobody:secret@127.0.0.1:1/none", "cannot be used"),
    ],
)
def test_a_url_that_is_none(url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    message = refused(url)
    assert words in message
    assert "secret" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["t.db", "with space.db", "50%25.db", "what?.db", "a#b.db", "ünï.db"])
def test_paths_of_any_characters(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / name, 1)
    assert os.listdir(tmp_path) == [name]
    monkeypatch.chdir(tmp_path)
    with open_db(name, read_only=True) as store:
        assert store.stats().trials == 1


def test_a_path_and_its_url_are_the_same_database(path: Path) -> None:
    filled(path, 3)
    with open_db(f"sqlite:///{path}", create=False) as store:
        assert store.stats().trials == 3


def test_an_empty_file_becomes_a_database_but_not_by_reading(path: Path) -> None:
    path.touch()
    assert "open it once for writing" in refused(path, read_only=True)
    assert snapshot(path.parent) == {path.name: b""}
    filled(path, 1)


def test_reading_leaves_the_folder_as_it_was_and_refuses_to_write(path: Path) -> None:
    filled(path)
    before = snapshot(path.parent)
    with open_db(path, read_only=True) as store:
        assert len(list(store.trials())) == 50
        with pytest.raises(DatabaseError, match="read-only"):
            store.add(trial(100))
    assert snapshot(path.parent) == before


@pytest.fixture
def read_only_disk(small_disk: Path) -> Callable[[], Path]:
    """Call it when the disk is filled: it makes it read-only."""

    def seal() -> Path:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        return small_disk

    return seal


def test_a_read_only_folder(small_disk: Path, read_only_disk: Callable[[], Path]) -> None:
    filled(small_disk / "t.db", 20)
    folder = read_only_disk()
    assert "is read-only" in refused(folder / "t.db")
    assert "the folder" in refused(folder / "new.db")
    with open_db(folder / "t.db", read_only=True) as store:
        assert store.stats().trials == 20
    assert os.listdir(folder) == ["t.db"]


def test_a_log_left_behind_in_a_read_only_folder(small_disk: Path, read_only_disk: Callable[[], Path]) -> None:
    filled(small_disk / "t.db", 5)
    code = (
        "import os, sys; from tests.tuning_db.made import trial; from tuning_db.store import open_db;"
        "store = open_db(sys.argv[1]); store.add(trial(9)); os._exit(0)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(small_disk / "t.db")], check=True, cwd=root)
    (small_disk / "t.db-shm").unlink()
    folder = read_only_disk()
    assert "left by a killed writer" in refused(folder / "t.db", read_only=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_a_read_only_file(path: Path) -> None:
    filled(path, 1)
    path.chmod(0o444)
    assert "is read-only" in refused(path)
    with open_db(path, read_only=True) as store:
        assert store.stats().trials == 1
