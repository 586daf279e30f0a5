"""The exports of tests.tuner.export.support, one by one: not to be written to. And this machine as a board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board_agent.support import Agent
from tests.tuner.export.support import NETWORKS, Made
from tuner.devices.board import Boards


@pytest.fixture(params=NETWORKS)
def made(request: pytest.FixtureRequest, exports: Path) -> Made:
    return Made(exports / f"{request.param}.module", exports / f"{request.param}.c", request.param)


@pytest.fixture
def tiny(exports: Path) -> Made:
    return Made(exports / "tiny.module", exports / "tiny.c", "tiny")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """The agent of this machine, with a configuration of the test's own in its folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = Agent(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def board(agent: Agent) -> str:
    """The device of this machine as a board that is paired with this user."""
    agent.pair(Boards(), "pi")
    return "board:pi"
