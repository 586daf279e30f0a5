"""Weights are fetched ahead: each line of the next output blocks, while a register tile's are computed."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm.target import Target

from templates.bfloats import BFLOAT16
from templates.cpu.direct import DirectConv
from templates.cpu.isa import vector_unit
from templates.integers import INTEGERS
from templates.rewrite import CACHE_LINE_BYTES, nodes_of, with_values
from templates.template import anchor_template, search_space, template_named
from templates.workloads import Conv2d
from tests.templates.cpu.integer_cpus import TARGETS, arm, x86
from tests.templates.support import Compiled, host_target
from tuning_db.record import Config, Workload

CASES = {
    **{f"int8, {name}": (INTEGERS, target) for name, target in TARGETS.items()},
    "float32": ("float32", host_target()),
    "float16": ("float16", arm("neoverse-n2")),
    "bfloat16, 512": (BFLOAT16, x86("cooperlake")),
    "bfloat16, 128": (BFLOAT16, arm("neoverse-n2")),
}
CONVS = {
    "3x3": Conv2d(1, 64, 7, 7, 256, (3, 3), padding=(1, 1, 1, 1)),
    "1x1": Conv2d(1, 512, 7, 7, 288, (1, 1)),
}
EPILOGUES = {INTEGERS: ("real", "scale", "relu", "quantize")}


def _fetching(workload: Workload, target: Target) -> Config | None:
    """Return the first config that fetches weights, or None if there is none."""
    space = search_space(workload, target)
    for part in () if space is None else space.spaces:
        for first in part.seed_configs():
            config = Config(first.template, {**first.knobs, "prefetch": 1, "groups": 1})
            if isinstance(template_named(first.template), DirectConv) and part.why_invalid(config) is None:
                return config
    return None


def _lines(func: tirx.PrimFunc, shape: tuple[int, ...], size: int) -> set[int]:
    """Return the numbers of the weight's cache lines that the first output blocks' loops fetch."""
    extents = {loop.loop_var: int(loop.extent) for loop in nodes_of(func.body, tirx.For)}
    found, analyzer = set(), Analyzer()
    for call in nodes_of(func.body, tvm.ir.Call):
        if call.op.name != "tirx.address_of":
            continue
        place: Any = tirx.const(0, "int64")
        for index, extent in zip(call.args[0].indices, shape, strict=True):
            place = place * extent + index
        variables = list(dict.fromkeys(nodes_of(place, tvm.ir.Var)))
        outer, *inner = sorted(variables, key=lambda var: "fused" not in var.name)
        for numbers in product(*(range(extents[var]) for var in inner)):
            values = {outer: tirx.const(0, "int64")}
            values |= {var: tirx.const(number, str(var.ty.dtype)) for var, number in zip(inner, numbers, strict=True)}
            found.add(int(analyzer.simplify(with_values(place, values))) * size // CACHE_LINE_BYTES)
    return found


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("case", CASES)
def test_every_line_of_the_next_blocks_is_fetched(case: str, conv: str) -> None:
    dtype, target = CASES[case]
    workload = CONVS[conv].workload(EPILOGUES.get(dtype, ("bias", "relu")), dtype)
    config = _fetching(workload, target)
    if config is None:
        vector = 4 * vector_unit(target).lanes
        assert search_space(workload, target) is None or vector < CACHE_LINE_BYTES
        pytest.skip("the target does not compute in this type, or a step reads less than a line")
    template = anchor_template(config.template)
    func, ob = template.prim_func(workload, target, config), config["ob"]
    weight = func.params[1]
    shape, size = tuple(int(n) for n in weight.shape), np.dtype(str(weight.dtype)).itemsize
    blocks = CONVS[conv].in_channels // shape[4] // (shape[6] if len(shape) > 6 else 1)
    numbers = np.arange(np.prod(shape)).reshape(shape)[ob : 2 * ob, :blocks]
    assert _lines(func, shape, size) >= set((numbers * size // CACHE_LINE_BYTES).ravel().tolist())


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("dtype", ["float32", INTEGERS])
def test_results_are_right(dtype: str, conv: str) -> None:
    workload = CONVS[conv].workload(EPILOGUES.get(dtype, ("bias", "relu")), dtype)
    config = _fetching(workload, host_target())
    if config is None:
        pytest.skip("this machine has no instruction for integers")
    template = anchor_template(config.template)
    assert Compiled(template, workload, host_target(), config).error() < 2e-6
