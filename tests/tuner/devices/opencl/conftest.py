"""Each driver that this machine has, in a child process; the no-op driver for what needs counting."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.devices.opencl.support import INTEL, Child, compile_noop_driver
from tuner.devices import opencl

LOADER = "libOpenCL.so.1"


def _device_count() -> int:
    return len(opencl.devices())


@pytest.fixture(scope="session", autouse=True)
def _compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    opencl.load()


def _skip_without(driver: str) -> str:
    if driver == "intel":
        if not INTEL.exists():
            pytest.skip("Intel's CPU runtime is not installed (pip install 'edgetune[opencl]')")
        return str(INTEL)
    try:
        ctypes.CDLL(LOADER)
    except OSError:
        pytest.skip(f"{LOADER} is not installed (apt-get install pocl-opencl-icd)")
    return LOADER


@pytest.fixture(scope="session", params=["loader", "intel"])
def child(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A process with one driver; its device 0 is to be used."""
    path = _skip_without(request.param)
    found = Child(EDGETUNE_OPENCL=path)
    if found(_device_count) == 0:
        found.close()
        pytest.skip(f"{path} offers no device")
    found(opencl.set_binary_cache, tmp_path_factory.mktemp("binaries"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def every_driver() -> Iterator[Child]:
    """A process with all the drivers of this machine, as they are found by default."""
    found = Child()
    if found(_device_count) == 0:
        found.close()
        pytest.skip("no OpenCL driver works on this machine")
    yield found
    found.close()


@pytest.fixture(scope="session")
def noop_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_noop_driver(tmp_path_factory.mktemp("noop"))


@pytest.fixture
def noop(noop_driver: Path) -> Iterator[Child]:
    found = Child(EDGETUNE_OPENCL=str(noop_driver))
    found(opencl.set_binary_cache, None)
    yield found
    found.close()
