from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board_agent.support import Agent, paired_agent
from tuner.devices.board import Board


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Board]]:
    """A board that is taken for gone after half the usual silence."""
    with paired_agent(Path(tmp_path_factory.mktemp("board")), None, "--alive", "1") as found:
        yield found
