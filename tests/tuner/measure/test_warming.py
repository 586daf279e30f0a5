"""A driver that compiles kernels when they are run compiles each candidate once, and not where it is timed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.measure.misbehaving_gpu import candidate
from tuner.devices import kind_of, list_devices, open_device
from tuner.devices.opencl.binaries import pocl_cache
from tuner.measure.codegen.toolchain import check_toolchain
from tuner.measure.messages import BuilderSettings, BuildJob, WarmJob
from tuner.measure.workers.build_main import build, warm
from tuning_db.record import FailureKind

Steps = tuple[str, ...]


@pytest.fixture(scope="module")
def late() -> str:
    """The name of a device whose driver compiles late."""
    found = [device.name for device in list_devices() if device.kind.compiles_when_run(device.name)]
    if not found:
        pytest.skip("PoCL is not here (apt-get install pocl-opencl-icd)")
    return found[0]


def _compiled_after(name: str, folder: str, steps: Steps) -> tuple[list[str], list[str]]:
    """What PoCL has compiled for the launch of a kernel after some steps of a builder in this fresh process, by the
    names of its folders, and the steps' failures."""
    kind_of(name).keep_binaries_in(f"{folder}/binaries", name)  # before the driver is opened
    device = open_device(name)
    settings = BuilderSettings(device.name, str(device.target), check_toolchain(), 1, 4 << 30, f"{folder}/binaries")
    library, failures = f"{folder}/candidate.so", []
    for step in steps:
        if step == "build":
            done = build(BuildJob(candidate("right", 0), library), device.target, settings)
        else:
            done = warm(WarmJob(library), settings)
        failures += [done.failure.kind.value] if done.failure is not None else []
    compiled = Path(pocl_cache(f"{folder}/binaries")).rglob("*_kernel.so")
    return sorted(file.parent.name for file in compiled), failures


def _in_a_process(name: str, folder: Path, *steps: str) -> tuple[list[str], list[FailureKind]]:
    code = f"from {__name__} import _compiled_after; print(_compiled_after({name!r}, {str(folder)!r}, {steps!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    compiled, failures = ast.literal_eval(done.stdout)
    return compiled, [FailureKind(kind) for kind in failures]


def test_building_alone_compiles_nothing_that_nobody_runs(late: str, tmp_path: Path) -> None:
    assert _in_a_process(late, tmp_path, "build") == ([], [])


def test_warming_compiles_for_the_launch_that_is_timed(late: str, tmp_path: Path) -> None:
    compiled, failures = _in_a_process(late, tmp_path, "build", "warm")
    assert failures == []
    assert len(compiled) == 1
    assert not compiled[0].startswith("0-0-0")
    assert _in_a_process(late, tmp_path, "warm")[0] == compiled  # what comes after finds it


def test_a_candidate_that_cannot_be_warmed_is_left_to_the_executor(late: str, tmp_path: Path) -> None:
    assert _in_a_process(late, tmp_path, "warm") == ([], [FailureKind.RUN])
