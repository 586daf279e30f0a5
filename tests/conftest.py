"""Holds for all tests: an interrupt interrupts, however the tests were started, and nothing has a time limit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.board_agent.bundles import copied, make_bundle


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and its children inherit that: tests of interrupts would wait for
    ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("edgetune", deadline=None)  # machines are shared and noisy
    settings.load_profile("edgetune")


@pytest.fixture(scope="session")
def made_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tests.board_agent.bundles.make_bundle: not to be written to."""
    folder = tmp_path_factory.mktemp("bundle")
    make_bundle(folder)
    return folder


@pytest.fixture
def bundle(made_bundle: Path, tmp_path: Path) -> Path:
    """A bundle of a small network for this machine, in a folder of the test's own."""
    return copied(made_bundle, tmp_path)
