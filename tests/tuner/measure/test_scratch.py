"""Scratch folders go away with their owners, however those end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tuner.errors import BadInput
from tuner.measure.scratch import Scratch, sweep

_DIE = """
import os, sys
from pathlib import Path
from tuner.measure.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
(scratch.path / "k1.so").write_bytes(b"x")
print(scratch.path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_close_removes_the_folder_and_may_be_called_twice(tmp_path):
    scratch = Scratch(tmp_path)
    (scratch.path / "k1.so").write_bytes(b"x")
    scratch.close()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start(tmp_path):
    done = subprocess.run([sys.executable, "-c", _DIE, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False)
    left = done.stdout.strip()
    assert os.path.isdir(left)
    scratch = Scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.close()


def test_folders_in_use_and_folders_just_made_are_left_alone(tmp_path):
    used = Scratch(tmp_path)
    newborn = tmp_path / "edgetune-newborn"
    newborn.mkdir()
    born = newborn.stat().st_mtime
    sweep(tmp_path, born + 1)
    assert used.path.is_dir()
    assert newborn.is_dir()
    sweep(tmp_path, born + 86400)
    assert used.path.is_dir()
    assert not newborn.exists()
    used.close()


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="TMPDIR"):
        Scratch(tmp_path / "missing")
