"""The configs that layers have without any trial: which algorithm, and how many sums in registers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from templates.cpu.isa import vector_unit
from templates.template import search_space, template_named
from templates.workloads import Conv2d, Dense
from tests.templates.support import host_target

CPUS = {"avx512": "skylake-avx512", "avx2": "haswell"}
SUMS = {"avx512": 24, "avx2": 12}
SAME3 = (1, 1, 1, 1)


def first(conv: Conv2d | Dense, cpu: str = "avx512", dtype: str = "float32"):
    space = search_space(conv.workload(("bias", "relu") if dtype == "float32" else (), dtype), host_target(CPUS[cpu]))
    assert space is not None
    return space.seed_configs()[0]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("size", [7, 14, 56, 200])
def test_layers_of_3x3_begin_with_winograd(cpu: str, size: int) -> None:
    assert first(Conv2d(1, 64, size, size, 64, (3, 3), padding=SAME3), cpu).template == "cpu.conv2d_winograd"


def test_small_images_strides_and_integers_do_not() -> None:
    small = Conv2d(1, 256, 4, 4, 126, (3, 3), padding=SAME3)
    strided = Conv2d(1, 64, 56, 56, 64, (3, 3), (2, 2), SAME3)
    assert first(small).template == first(strided).template == "cpu.conv2d_direct"


def test_what_a_cache_does_not_hold_is_computed_a_row_of_tiles_at_a_time() -> None:
    large = first(Conv2d(1, 64, 120, 160, 32, (3, 3), padding=SAME3))
    assert (large["at"], large["pad"], large["rows"], large["m"]) == ("group", "row", 1, 4)
    assert first(Conv2d(1, 64, 20, 20, 64, (3, 3), padding=SAME3))["at"] == "root"


@pytest.mark.parametrize("cpu", CPUS)
@given(data=st.data())
def test_no_seed_has_more_sums_than_registers_hold_without_spilling(cpu: str, data: st.DataObject) -> None:
    channels, size = st.integers(16, 300), st.integers(4, 60)
    kernel = data.draw(st.sampled_from([(1, 1), (3, 3), (5, 5)]))
    padding = (kernel[0] // 2,) * 4
    conv = Conv2d(
        1, data.draw(channels), data.draw(size), data.draw(size), data.draw(channels), kernel, padding=padding
    )
    target = host_target(CPUS[cpu])
    assert vector_unit(target).seeded == SUMS[cpu]
    for name in ("cpu.conv2d_direct", "cpu.conv2d_winograd"):
        space = template_named(name).space(conv.workload(), target)
        for config in space.seed_configs() if space is not None else ():
            k = config.knobs
            sums = k["ob"] * (k["tiles"] if "tiles" in k else k["tw"] * k["th"])
            assert sums <= SUMS[cpu], dict(k)
    dense = Dense(data.draw(st.integers(1, 40)), data.draw(channels), data.draw(channels))
    for config in template_named("cpu.dense").space(dense.workload(), target).seed_configs():
        assert config["nb"] * config["rows"] <= SUMS[cpu], dict(config.knobs)


def test_no_seed_stands_twice() -> None:
    for conv in (Conv2d(1, 256, 14, 14, 256, (1, 1)), Conv2d(1, 48, 52, 52, 48, (3, 3), padding=SAME3)):
        space = search_space(conv.workload(), host_target(CPUS["avx512"]))
        assert space is not None
        assert len(set(space.seed_configs())) == len(space.seed_configs())
