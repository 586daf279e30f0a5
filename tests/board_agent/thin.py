"""A Python for the thin agent: with NumPy and pyopencl (or pycuda), and without TVM, as on boards where TVM cannot be
installed.

EDGETUNE_TEST_THIN names it; `python3 -m venv DIR; DIR/bin/pip install numpy pyopencl` makes one.
"""

from __future__ import annotations

import os
import subprocess

import pytest

_FIRST = """
import importlib.util, numpy
assert importlib.util.find_spec("tvm") is None
"""
_PROBES = {
    "opencl": "import pyopencl; print(len([d for p in pyopencl.get_platforms() for d in p.get_devices()]))",
    "cuda": "import pycuda.driver as d, pycuda.compiler; d.init(); assert d.Device.count(), 'no device'",
}


def thin_python(kind: str = "opencl") -> str:
    """Skips the test where there is none, or no device of the kind for it."""
    python = os.environ.get("EDGETUNE_TEST_THIN")
    if python is None:
        pytest.skip("EDGETUNE_TEST_THIN names no Python with NumPy and pyopencl alone")
    command = [python, "-W", "ignore", "-c", _FIRST + _PROBES[kind]]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"{python} is not a thin board's: {probe.stderr.strip().splitlines()[-1]}")
    return python
