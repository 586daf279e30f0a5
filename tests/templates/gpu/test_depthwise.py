from __future__ import annotations

import pytest

from templates.gpu.depthwise import GpuDepthwise
from templates.gpu.limits import gpu_target
from templates.workloads import Conv2d
from tests.templates.gpu.support import GPUS, HOST, PROCESSOR, gpu

TEMPLATE = GpuDepthwise()


@pytest.mark.parametrize("limits", GPUS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("size", "channels"), [(1, 4), (2, 12), (7, 960), (112, 32)])
def test_every_size_has_seeds(size: int, channels: int, batch: int, limits: str) -> None:
    conv = Conv2d(batch, channels, size, size, channels, (3, 3), padding=(1, 1, 1, 1), groups=channels)
    space = TEMPLATE.space(conv.workload(("bias", "relu")), gpu(limits))
    assert len({config["pad"] for config in space.seed_configs()}) >= 3


@pytest.mark.parametrize("limits", GPUS)
def test_the_patch_is_read_by_unrolled_loops_alone(limits: str) -> None:
    conv = Conv2d(1, 32, 14, 14, 32, (3, 3), padding=(1, 1, 1, 1), groups=32)
    space = TEMPLATE.space(conv.workload(), gpu(limits))
    patch = next(c for c in space.seed_configs() if c["pad"] == "patch")
    assert space.why_invalid(type(patch)(patch.template, {**patch.knobs, "unroll_kh": 0})) is not None


@pytest.mark.parametrize(("size", "kernel"), [(112, 3), (56, 3), (14, 5), (7, 3)])
def test_a_processors_first_seed_has_whole_vectors_and_divides_the_image(size: int, kernel: int) -> None:
    conv = Conv2d(1, 96, size, size, 96, (kernel, kernel), padding=(kernel // 2,) * 4, groups=96)
    first = next(iter(TEMPLATE.space(conv.workload(("silu",)), gpu_target(PROCESSOR, HOST)).seed_configs()))
    assert first["vec"] == PROCESSOR.lanes
    assert size % (first["yi"] * first["yt"]) == 0
    assert size % (first["xi"] * first["xt"]) == 0
