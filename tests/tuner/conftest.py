"""What tests of several folders here read: made once in a run, and not to be written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_once import made_once
from tests.tuner.export.support import make_exports


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tests.tuner.export.support.make_exports."""
    return made_once(tmp_path_factory, "exports", make_exports)
