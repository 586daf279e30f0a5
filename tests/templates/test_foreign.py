"""Another tuner's tiles in our templates: always valid, and exact where a template can have them."""

from __future__ import annotations

import pytest
from tvm.target import Target

import templates  # noqa: F401  registers the templates
from templates.foreign import translated
from templates.space import SearchSpace
from templates.template import search_space
from templates.workloads import Conv2d
from tests.tuner.interop import logs
from tuner.devices.profiles import profile_named
from tuner.interop.autotvm import from_record
from tuning_db.record import Config, Workload

CONV = Conv2d(1, 64, 28, 28, 64, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("bias", "relu"))
DEPTHWISE = Conv2d(1, 32, 28, 28, 32, (3, 3), (2, 2), (1, 1, 1, 1), groups=32).workload(("bias",))


def space_on(target: Target, workload: Workload) -> SearchSpace:
    space = search_space(workload, target)
    assert space is not None
    return space


@pytest.mark.parametrize(
    ("profile", "record", "workload", "wanted"),
    [
        ("mali-g610", logs.SPATIAL_PACK, CONV, {"ki": 1, "vec": 4, "yi": 2, "xi": 4, "kt": 4, "yt": 1, "xt": 7}),
        ("jetson-nano", logs.DEPTHWISE, DEPTHWISE, {"yi": 1, "xi": 1}),
    ],
)
def test_tiles_are_kept_where_a_template_can_have_them(
    profile: str, record: dict, workload: Workload, wanted: dict[str, int]
) -> None:
    target = profile_named(profile).target()
    space = space_on(target, workload)
    found = translated(from_record(record).config, workload, space, target)
    assert found
    assert all(space.is_valid(config) for config in found)
    assert any(all(config[knob] == value for knob, value in wanted.items()) for config in found), found


def test_a_work_item_of_virtual_threads_is_one_tile() -> None:
    """Two virtual threads of two channels, and four of columns: a tile of 4 channels and 4 columns."""
    target = profile_named("jetson-nano").target()
    space = space_on(target, CONV)
    (found,) = (
        c for c in translated(from_record(logs.CUDA).config, CONV, space, target) if c.template == "gpu.conv2d_direct"
    )
    assert space.is_valid(found)
    assert (found["ki"] * found["vec"], found["yi"], found["xi"]) == (4, 1, 4)
    assert (found["yt"], found["xt"]) == (2, 7)


@pytest.mark.parametrize(
    "config",
    [
        Config("autotvm/conv2d_nchw_winograd.cuda", {"tile_b": (1, 2, 4, 1)}),
        Config("autotvm/conv2d_nchw.cuda", {"tile_f": (1, 2)}),
        Config("autotvm/conv2d_nchw.cuda", {"tile_f": (0, 0, 0, 0), "tile_y": (1,) * 4, "tile_x": (1,) * 4}),
        Config("gpu.conv2d_direct", {}),
    ],
    ids=["unknown", "other knobs", "nothing", "ours"],
)
def test_what_says_nothing_is_left_out(config: Config) -> None:
    target = profile_named("jetson-nano").target()
    assert translated(config, CONV, space_on(target, CONV), target) == []
