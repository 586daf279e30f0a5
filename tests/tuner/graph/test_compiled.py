"""CUDA kernels are compiled for the GPU that is named, whichever is here, if any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.measure.offline.support import compiler_or_skip


@pytest.mark.sampled(2)
def test_kernels_are_for_the_gpu_that_they_are_placed_on(libraries: Path, tmp_path: Path) -> None:
    compiler_or_skip("jetson-xavier", "nvrtc")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "EDGETUNE_CUDA_LOG": str(tmp_path / "log")}
    command = [sys.executable, "-m", "tests.tuner.graph.compiled_child", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["network"]) == [72, 90]  # of a module each, neither of which is the driver's own
    assert found["kernel"] == [90]
    assert (found["loaded"], found["own"]) == ([87], "sm_87")
    assert found["missing"].endswith("for sm_53: pip install 'edgetune[cuda-offline]'")
