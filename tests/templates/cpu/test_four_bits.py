"""Products by 4-bit matrices: packing, vectors of every width, strange data, and hot loops."""

from __future__ import annotations

import numpy as np
import pytest

from templates.four_bits import OPERATOR, FourBits, dequantised, in_tiles, packed
from templates.lowering import build
from templates.template import search_space, template_named
from tests.templates.cpu.integer_cpus import x86
from tests.templates.support import CPU, host_target
from tests.vision_ops.support import Compiled, Place, configs_of
from tuner.report.hot_loop import in_assembly

CPUS = {"host": host_target(), "8 lanes": x86("haswell"), "4 lanes": x86("x86-64-v2")}
VIEWS = {
    "one row": FourBits(1, 128, 96),
    "rows": FourBits(7, 64, 40, 16, zeros=True),
    "a wide block": FourBits(2, 256, 17, 256, zeros=True),
    "a word": FourBits(3, 24, 33, 8),
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", VIEWS)
def test_results_are_the_references(name: str, cpu: str) -> None:
    workload, place = VIEWS[name].workload(), Place(CPUS[cpu], CPU)
    inputs = OPERATOR.random_inputs(workload, np.random.default_rng(1))
    for config in configs_of(workload, place.target, samples=1, seed=2)[:3]:
        compiled = Compiled.of(workload, config, place)
        for _, given in (("random", inputs), *OPERATOR.hostile_inputs(workload, inputs)):
            assert compiled.error(*given) < 1e-5, config.key


def test_packing_keeps_every_number() -> None:
    rng, view = np.random.default_rng(3), FourBits(1, 64, 21, 16, zeros=True)
    numbers = rng.integers(0, 16, (21, 64))
    scale, zero = rng.standard_normal((21, 4)), rng.integers(0, 16, (21, 4), np.uint8)
    found = dequantised(view, packed(numbers, 16), in_tiles(scale), in_tiles(zero))
    np.testing.assert_array_equal(found, (numbers - np.repeat(zero, 16, 1).astype(int)) * np.repeat(scale, 16, 1))


@pytest.mark.parametrize("view", [(1, 60, 4, 32), (0, 64, 4, 32), (1, 36, 4, 12)])
def test_sizes_that_do_not_fit_are_refused(view: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="dense_4bit"):
        FourBits(*view)


@pytest.mark.parametrize(("mcpu", "register"), [("icelake-server", "%zmm"), ("haswell", "%ymm")])
def test_hot_loops_multiply_whole_vectors_in_registers(mcpu: str, register: str) -> None:
    workload, target = FourBits(1, 2048, 2048).workload(), x86(mcpu)
    space = search_space(workload, target)
    assert space is not None
    config = space.seed_configs()[0]
    function = template_named(config.template).prim_func(workload, target, config)
    text = build(function, target).inspect_source("asm")
    loop = in_assembly(text)
    assert loop is not None
    lines = [line for line in text.splitlines()[loop.first : loop.last + 1] if "vfmadd" in line]
    assert len(lines) == loop.multiply_adds >= 8
    assert all(register in line for line in lines)
    assert not loop.stack_stores  # sixteen registers do not hold all masks
