"""Scratch folders go away with their owners, however those end, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from board_agent.scratch import MARKER, Scratch, sweep

_DIE = """
import os, sys
from board_agent.scratch import Scratch
scratch = Scratch(sys.argv[1])
open(os.path.join(scratch.path, "k1.so"), "wb").close()
print(scratch.path, flush=True)
os.kill(os.getpid(), 9)
"""


def left_by_a_killed_process(base: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", _DIE, str(base)], stdout=subprocess.PIPE, text=True, check=False)
    return Path(done.stdout.strip())


def test_close_removes_the_folder_and_may_be_called_twice(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    (Path(scratch.path) / "k1.so").write_bytes(b"x")
    scratch.close()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    assert left_by_a_killed_process(tmp_path).is_dir()
    with Scratch(str(tmp_path)) as path:
        assert [str(folder) for folder in tmp_path.iterdir()] == [path]


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    with Scratch(str(tmp_path)) as used:
        sweep(str(tmp_path))
        assert Path(used).is_dir()


@pytest.mark.parametrize("name", ["edgetune-demo", "edgetune-scratch-mine", "edgetune-board-99999999-notes"])
def test_what_has_no_lock_file_is_somebodys_however_old_and_whatever_its_name(tmp_path: Path, name: str) -> None:
    mine = tmp_path / name
    (mine / "results").mkdir(parents=True)
    (mine / "lock").touch()
    (mine / "results" / "edgetune.db").write_bytes(b"x")
    os.utime(mine, (0, 0))
    with Scratch(str(tmp_path)):
        assert (mine / "results" / "edgetune.db").read_bytes() == b"x"


def test_links_to_dead_folders_and_to_lock_files_are_not_followed(tmp_path: Path) -> None:
    elsewhere, base = tmp_path / "elsewhere", tmp_path / "base"
    elsewhere.mkdir()
    base.mkdir()
    dead = left_by_a_killed_process(elsewhere)
    (base / "edgetune-scratch-link").symlink_to(dead)
    (base / "edgetune-scratch-folder").mkdir()
    (base / "edgetune-scratch-folder" / MARKER).symlink_to(dead / MARKER)
    sweep(str(base))
    assert (dead / "k1.so").exists()
    assert sorted(path.name for path in base.iterdir()) == ["edgetune-scratch-folder", "edgetune-scratch-link"]


def test_a_lock_file_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "edgetune-scratch-pipe").mkdir()
    os.mkfifo(tmp_path / "edgetune-scratch-pipe" / MARKER)
    sweep(str(tmp_path))
    assert (tmp_path / "edgetune-scratch-pipe").is_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to have another user's folder")
def test_another_users_folder_is_left_alone(tmp_path: Path) -> None:
    dead = left_by_a_killed_process(tmp_path)
    os.chown(dead, 65534, 65534)
    sweep(str(tmp_path))
    assert dead.is_dir()
    os.chown(dead, 0, 0)
    os.chown(dead / MARKER, 65534, 65534)
    sweep(str(tmp_path))
    assert dead.is_dir()


def test_others_cannot_read_what_is_in_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Scratch(str(tmp_path)) as path:
            assert os.stat(path).st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
