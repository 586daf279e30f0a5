"""A runner's scratch folder: see tests/board_agent/test_scratch.py for what keeps it and what removes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import BadInput
from tuner.measure.scratch import Scratch


def test_it_goes_away_when_it_is_closed(tmp_path: Path) -> None:
    with Scratch(tmp_path) as folder:
        (folder / "k1.so").write_bytes(b"x")
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="TMPDIR"):
        Scratch(tmp_path / "missing")
