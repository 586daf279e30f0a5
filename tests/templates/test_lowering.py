"""Kernels for CPUs are compiled without memory traffic that their schedules do not ask for."""

from __future__ import annotations

import pytest
from tvm.target import Target

from templates.lowering import build
from templates.template import template_named
from tests.templates.workloads import WORKLOADS

CASES = {"conv1x1": "cpu.conv2d_direct", "conv1x1_prime": "cpu.conv2d_direct", "dense": "cpu.dense"}
TRIPLES = {"x86-64-v4": "x86_64-linux-gnu", "x86-64-v3": "x86_64-linux-gnu", "cortex-a72": "aarch64-linux-gnu"}


@pytest.mark.parametrize("mcpu", TRIPLES)
@pytest.mark.parametrize("name", CASES)
def test_sums_stay_in_registers(name: str, mcpu: str) -> None:
    """The sums of a register tile have no memory, which the runtime would have to give and the kernel to clear."""
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": TRIPLES[mcpu], "num-cores": 1})
    template, workload = template_named(CASES[name]), WORKLOADS[name]
    space = template.space(workload, target)
    assert space is not None
    for config in space.seed_configs()[:3]:
        func = template.prim_func(workload, target, config)
        assembly = str(build(func, target).inspect_source("asm"))
        assert "AllocWorkspace" not in assembly
        assert "memset" not in assembly
