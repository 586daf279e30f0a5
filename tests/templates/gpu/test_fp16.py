"""Storage in half precision: sums and epilogues stay float32, so that a result is rounded once."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from templates.gpu.limits import gpu_target
from templates.gpu.tensor_core import GpuTensorCore
from templates.reference import random_operands, reference, relative_error
from templates.template import AnchorTemplate, all_templates, search_space, template_named
from templates.workloads import Conv2d, Dense
from tests.templates.gpu.support import GPUS, HOST, device_number, gpu
from tests.templates.support import Compiled, host_target
from tests.tuner.measure.offline.support import compiler_or_skip
from tuning_db.record import Workload, tolerance_of

LIMITS = GPUS["mali"]
TARGET = gpu("mali")
# Tensor cores have tests of their own, as no OpenCL driver has them, and so have templates of CPUs.
NAMES = [
    t.name
    for t in all_templates()
    if isinstance(t, AnchorTemplate)
    and "float16" in t.dtypes
    and not t.name.startswith("cpu.")
    and not isinstance(t, GpuTensorCore)
]
CONV = Conv2d(1, 24, 13, 12, 40, (3, 3), padding=(0, 1, 2, 1))
DEEP = Conv2d(1, 1024, 4, 4, 8, (1, 1))
EPILOGUE = ("bias", "add", "relu")


def made_for(name: str) -> Workload:
    """A workload with odd sizes that the template applies to."""
    if name == "gpu.dense":
        return Dense(3, 130, 60).workload(EPILOGUE, "float16")
    conv = {
        "gpu.depthwise": replace(CONV, out_channels=24, groups=24),
        "gpu.conv2d_direct_nchw": replace(CONV, in_channels=3),
    }.get(name, CONV)
    return conv.workload(EPILOGUE, "float16")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_the_only_rounding_is_the_results(name: str) -> None:
    template, workload = template_named(name), made_for(name)
    device = tvm.runtime.device("opencl", device_number("intel"))
    space, rng = template.space(workload, TARGET), random.Random(4)
    inputs = random_operands(workload, 0)
    expected = reference(workload, inputs)
    rounded = relative_error(expected.astype(np.float16).astype(np.float64), expected)
    for config in [*rng.sample(space.seed_configs(), 2), space.sample(rng)]:
        result = Compiled(template, workload, TARGET, config, device).run(inputs, expected.shape)
        assert result.dtype == np.float16
        assert relative_error(result, expected) <= 1.01 * rounded, dict(config.knobs)
    assert rounded < tolerance_of("float16")


@pytest.mark.parametrize("name", ["gpu.conv2d_direct", "mali.conv2d_spatial_pack", "gpu.dense"])
def test_long_sums_keep_float32(name: str) -> None:
    """1024 equal products: in half precision the sum would stop growing."""
    anchor = Dense(1, 1024, 8) if name == "gpu.dense" else DEEP
    template, workload = template_named(name), anchor.workload((), "float16")
    device = tvm.runtime.device("opencl", device_number("intel"))
    inputs = random_operands(workload, 0)
    ones = replace(inputs, data=np.ones_like(inputs.data), weight=np.full_like(inputs.weight, 2.01))
    config = template.space(workload, TARGET).seed_configs()[0]
    result = Compiled(template, workload, TARGET, config, device).run(ones, anchor.out_shape)
    np.testing.assert_array_equal(result, np.float16(1024 * float(np.float16(2.01))))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_code_needs_no_more_than_the_half_extension(name: str) -> None:
    clang = compiler_or_skip("mali-t860", "clang")
    template, workload = template_named(name), made_for(name)
    for config in template.space(workload, TARGET).seed_configs():
        source = Compiled(template, workload, TARGET, config).build().imports[0].inspect_source()
        lanes = config["vec"] if name in ("gpu.dense", "gpu.depthwise") else 4
        assert re.search(rf"\bfloat{lanes if lanes > 1 else ''} (conv|sums|parts)_local_ptr\[", source)
        clang.compile(source)


def test_a_device_without_half_precision_gets_no_template() -> None:
    workload = CONV.workload(EPILOGUE, "float16")
    assert search_space(workload, gpu_target(replace(LIMITS, fp16=False), HOST)) is None
    assert search_space(workload, host_target()) is None
    assert {s.template for s in search_space(workload, TARGET).spaces} == {
        "gpu.conv2d_direct",
        "mali.conv2d_spatial_pack",
    }


def test_local_memory_is_counted_in_bytes_of_storage() -> None:
    template = template_named("gpu.conv2d_direct")
    knobs = {"pad": "shared", "wshared": 1, "kt": 2, "xt": 4, "yt": 2}
    sizes = []
    for dtype in ("float32", "float16"):
        space = template.space(CONV.workload((), dtype), TARGET)
        sizes.append(space.encode(space.config({**space.seed_configs()[0].knobs, **knobs}))["local_bytes"])
    assert sizes[0] == 2 * sizes[1] > 0
