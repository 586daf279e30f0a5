"""Holds for all tests: an interrupt interrupts, however the tests were started, nothing has a time limit, process
servers are forked instead of started, and a run says what it left out and what its tests took."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.board_agent.bundles import copied, make_bundle
from tests.forks import FORKS
from tests.groups import Groups
from tests.made_once import made_once, tune_tiny_network
from tests.processor_time import ProcessorTimes
from tests.selection import MARKERS, Selection
from tests.spare_server import use_spares
from tuner.devices import usable_cpus
from tuner.measure.workers import worker as processes

_start_server = processes.start_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor-times", type=Path, help="append the processor seconds of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background job ignores SIGINT, and its children inherit that: tests of interrupts would wait for
    ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("edgetune", deadline=None)  # machines are shared and noisy
    settings.load_profile("edgetune")
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    for plugin in (Selection(config), Groups(), ProcessorTimes(config.getoption("--processor-times"))):
        config.pluginmanager.register(plugin)
    use_spares(FORKS.spare)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: one of them has the tests that own boards, which mostly wait."""
    return len(usable_cpus()) + 1


@pytest.fixture
def started_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process servers start as they do for a user."""
    monkeypatch.setattr(processes, "start_server", _start_server)


@pytest.fixture(scope="session")
def made_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tests.board_agent.bundles.make_bundle: not to be written to."""
    return made_once(tmp_path_factory, "bundle", make_bundle)


@pytest.fixture(scope="session")
def tuned_on_pocl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tests.made_once.tune_tiny_network: not to be written to."""
    return made_once(tmp_path_factory, "tuned", tune_tiny_network)


@pytest.fixture
def bundle(made_bundle: Path, tmp_path: Path) -> Path:
    """A bundle of a small network for this machine, in a folder of the test's own."""
    return copied(made_bundle, tmp_path)
