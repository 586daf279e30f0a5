"""What several tests of reports look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.stages.networks import branches
from tuner.devices import open_device
from tuner.graph.layout.choice import Planned
from tuner.module import build_placed


@pytest.fixture(scope="session")
def untuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module that was built without a database, for one thread of the CPU: not to be written to."""
    folder = tmp_path_factory.mktemp("untuned")
    graph = branches(folder)
    build_placed(graph, [open_device("cpu", 1)], Planned([0] * len(graph.steps)), directory=folder / "out")
    return folder / "out"
