"""The exports of tests.tuner.export.support, one by one: not to be written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.export.support import NETWORKS, Made


@pytest.fixture(params=NETWORKS)
def made(request: pytest.FixtureRequest, exports: Path) -> Made:
    return Made(exports / f"{request.param}.module", exports / f"{request.param}.c", request.param)


@pytest.fixture
def tiny(exports: Path) -> Made:
    return Made(exports / "tiny.module", exports / "tiny.c", "tiny")
