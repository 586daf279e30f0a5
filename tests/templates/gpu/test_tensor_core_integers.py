"""Convolutions of integers on tensor cores. No GPU is needed: CUDA code is compiled only, the schedule runs without the
operations on fragments on an OpenCL driver, and these operations run on a processor that plays a warp."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from templates.gpu.byte_fragments import COLUMNS, DEPTH, FRAGMENTS, ROWS
from templates.gpu.checks import violations
from templates.gpu.lowered import lower
from templates.integers import INTEGERS
from templates.template import search_space, template_named
from tests.templates.cpu.integer_cpus import operands_of_extremes
from tests.templates.gpu.support import gpu
from tests.templates.gpu.test_tensor_core import run_without_fragments, with_knob
from tests.templates.integer_workloads import WORKLOADS, right
from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.devices.profiles import profile_named
from tuner.measure.offline.nvrtc import Nvrtc
from tuner.measure.offline.report import SPILL_BYTES

NAME = "gpu.conv2d_tensor_core_integer"
CONVS = ("conv3x3", "conv3x3_border", "conv3x3_strided", "conv1x1", "grouped_whole", "grouped_merged", "conv3x3_sum")
_WARP = Path(__file__).parent / "warp.cc"
_ZIG = [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else []
COMPILER = ["g++"] if shutil.which("g++") else _ZIG


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONVS)
def test_sums_are_exact(name: str) -> None:
    """Random operands of the whole range, and the largest and smallest ones."""
    workload = WORKLOADS[name]
    config = template_named(NAME).space(workload, gpu("orin")).sample(random.Random(len(name)))
    for kind, inputs in operands_of_extremes(workload).items():
        assert right(*run_without_fragments(workload, config, inputs)), (kind, dict(config.knobs))


def test_copies_that_overlap_are_right() -> None:
    """Only layers without padding have them, as the border of integers is no zero."""
    space = template_named(NAME).space(WORKLOADS["conv1x1"], gpu("orin"))
    config = with_knob(space, "asynchronous", 1).sample(random.Random(3))
    assert right(*run_without_fragments(WORKLOADS["conv1x1"], config))
    padded = template_named(NAME).space(WORKLOADS["conv3x3"], gpu("orin"))
    assert "asynchronous" not in {knob.name for knob in padded.knobs}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("profile", ["jetson-orin", "h100"])
@pytest.mark.parametrize("name", CONVS)
def test_it_compiles_to_instructions_of_the_tensor_core(profile: str, name: str) -> None:
    nvrtc = compiler_or_skip(profile, "nvrtc")
    assert isinstance(nvrtc, Nvrtc)
    target, limits = profile_named(profile).target(), profile_named(profile).limits
    template = template_named(NAME)
    space = template.space(WORKLOADS[name], target)
    for config in (space.seed_configs()[0], space.sample(random.Random(name))):
        lowered = lower(template.prim_func(WORKLOADS[name], target, config), target)
        assert violations(lowered, limits) == []
        source = lowered.source()
        (kernel,) = nvrtc.compile(source).values()
        assert kernel.spill_bytes <= SPILL_BYTES, dict(config.knobs)
        assert kernel.local_bytes <= space.encode(config)["local_bytes"] == lowered.kernels[0].local_bytes
        instructions = nvrtc.ptx(source)
        assert re.search(r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.u8\.s8\.s32", instructions)
        assert re.search(r"ldmatrix\.sync\.aligned\.m8n8\.x4", instructions)
        assert ("cp.async" in instructions) == bool(config.knobs.get("asynchronous"))


def test_it_is_searched_where_there_are_such_cores() -> None:
    def offered(profile: str) -> bool:
        space = search_space(WORKLOADS["conv3x3"], profile_named(profile).target())
        return NAME in {one.template for one in space.spaces}

    assert offered("jetson-orin")
    assert not offered("jetson-xavier")  # its instructions multiply signed bytes only
    assert template_named(NAME).space(WORKLOADS["first_layer"], gpu("orin")) is None
    assert template_named(NAME).dtypes == (INTEGERS,)


@pytest.mark.skipif(not COMPILER, reason="needs g++ or ziglang")
def test_fragments_hold_what_the_instructions_expect(tmp_path: Path) -> None:
    """The text that kernels get is compiled for this processor, with instructions that do what the PTX ISA says."""
    (tmp_path / "fragments.h").write_text(FRAGMENTS)
    command = [*COMPILER, "-std=c++17", "-O1", "-pthread", f"-I{tmp_path}", str(_WARP)]
    done = subprocess.run([*command, "-o", str(tmp_path / "warp")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rng = np.random.default_rng(3)
    for stride in (DEPTH // 4, DEPTH // 4 + 4):
        a = rng.integers(0, 256, (ROWS, 4 * stride), np.uint8)
        b = rng.integers(-128, 128, (COLUMNS, 4 * stride), np.int8)
        done = subprocess.run(
            [str(tmp_path / "warp"), str(stride)], input=a.tobytes() + b.tobytes(), capture_output=True, check=True
        )
        sums = np.frombuffer(done.stdout, np.int32).reshape(ROWS, COLUMNS)
        expected = a[:, :DEPTH].astype(np.int32) @ b[:, :DEPTH].astype(np.int32).T
        np.testing.assert_array_equal(sums, 5 + 2 * expected)
