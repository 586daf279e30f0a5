"""Candidates for boards without TVM: the list of launches is what the compiled host code does, for every template."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from templates.gpu.limits import GpuLimits, gpu_target
from templates.gpu.lowered import lower
from templates.lowering import lowering_context
from templates.template import search_space, template_named
from tests.templates.gpu.support import driver
from tests.templates.workloads import WORKLOADS
from tests.tuner.measure.offline.support import compiler_or_skip
from tests.vision_ops.test_contract import GPU_WORKLOADS as OPERATORS
from tuner.devices import opencl
from tuner.devices.profiles import profile_named
from tuner.measure.codegen.launches import build_launches
from tuner.measure.codegen.toolchain import operand_types

MALI = gpu_target(GpuLimits("opencl", "mali", 256, 32 << 10, 4))
# Between them they have every template.
ANCHORS = ("conv3x3", "conv1x1_strided", "first_layer", "depthwise", "dense_rows")
EVERY = {**{name: WORKLOADS[name] for name in ANCHORS}, **OPERATORS}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", EVERY)
def test_they_are_what_the_host_code_launches(name: str, tmp_path: Path) -> None:
    here = driver("pocl")
    space = search_space(EVERY[name], here.target())
    assert space is not None
    firsts = {config.template: config for config in reversed(space.seed_configs())}
    for template, config in firsts.items():
        func = template_named(template).prim_func(EVERY[name], here.target(), config)
        build_launches(func, here.target(), tmp_path / "l.json")
        found = json.loads((tmp_path / "l.json").read_text())
        with lowering_context():
            function = tvm.tirx.build(func, target=here.target())["main"]
        types = operand_types(func)
        arguments = [tvm.runtime.tensor(np.zeros(shape, dtype), here.device) for shape, dtype in types]
        with opencl.trace() as launches:
            function(*arguments)
            here.device.sync()
        assert [launch["kernel"] for launch in found["launches"]] == [launch.kernel for launch in launches], template
        assert found["arguments"] == [np.zeros(shape, dtype).nbytes for shape, dtype in types]
        _check_uses(found)


def _check_uses(found: dict) -> None:
    """Everything that a function takes and allocates is given to some kernel."""
    given = {tuple(given) for launch in found["launches"] for given in launch["arguments"]}
    places = range(len(found["arguments"])), range(len(found["workspaces"]))
    for kind, numbers in zip(("argument", "workspace"), places, strict=True):
        assert {(kind, number) for number in numbers} == {pair for pair in given if pair[0] == kind}
    assert all(f" {launch['kernel']}(" in found["source"] for launch in found["launches"])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("profile", ["jetson-nano", "jetson-orin"])
@pytest.mark.parametrize("name", EVERY)
def test_a_jetson_is_sent_what_nvcc_compiles(name: str, profile: str, tmp_path: Path) -> None:
    nvrtc, target = compiler_or_skip(profile, "nvrtc"), profile_named(profile).target()
    space = search_space(EVERY[name], target)
    assert space is not None
    for template, config in {config.template: config for config in reversed(space.seed_configs())}.items():
        func = template_named(template).prim_func(EVERY[name], target, config)
        build_launches(func, target, tmp_path / "l.json")
        found = json.loads((tmp_path / "l.json").read_text())
        _check_uses(found)
        compiled, lowered = nvrtc.compile(found["source"]), {k.name: k for k in lower(func, target).kernels}
        assert {launch["kernel"] for launch in found["launches"]} == set(compiled)
        for launch in found["launches"]:
            kernel = lowered[launch["kernel"]]
            assert (tuple(launch["groups"]), tuple(launch["items"])) == (kernel.grid, kernel.group)
            assert len(launch["arguments"]) == kernel.arguments


def test_local_memory_that_a_launch_asks_for(tmp_path: Path) -> None:
    """What a block of CUDA needs beyond 48 KiB is no part of its kernel."""
    profile = profile_named("h100")
    data = te.placeholder((64, 256), name="data", dtype="float32")
    once = te.compute((64, 256), lambda i, j: data[i, j] + tvm.tirx.const(1, "float32"), name="once")
    twice = te.compute((64, 256), lambda i, j: once[i, 255 - j] * once[i, j], name="twice")
    schedule = Schedule(te.create_prim_func([data, twice]))
    row, column = schedule.get_loops(schedule.get_sblock("twice"))
    schedule.bind(row, "blockIdx.x")
    schedule.compute_at(schedule.get_sblock("once"), row)
    schedule.set_scope(schedule.get_sblock("once"), 0, "shared.dyn")
    schedule.bind(schedule.get_loops(schedule.get_sblock("once"))[-1], "threadIdx.x")
    schedule.bind(column, "threadIdx.x")
    build_launches(schedule.mod["main"], profile.target(), tmp_path / "l.json")
    (launch,) = json.loads((tmp_path / "l.json").read_text())["launches"]
    assert (launch["groups"], launch["items"], launch["local_bytes"]) == ([64, 1, 1], [256, 1, 1], 256 * 4)


def test_loops_of_the_host_are_counted(tmp_path: Path) -> None:
    """Argsort merges runs in a loop on the host, and its kernel is told the number of the pass."""
    workload = OPERATORS["argsort"]
    space = search_space(workload, MALI)
    assert space is not None
    config = space.seed_configs()[0]
    func = template_named(config.template).prim_func(workload, MALI, config)
    build_launches(func, MALI, tmp_path / "l.json")
    launches = json.loads((tmp_path / "l.json").read_text())["launches"]
    passes = [value for launch in launches for kind, value in launch["arguments"] if kind == "int32"]
    assert passes == list(range(len(passes)))
    assert len(passes) > 2


def test_what_computes_on_the_host_is_refused(tmp_path: Path) -> None:
    data = te.placeholder((64,), name="data", dtype="float32")
    once = te.compute((64,), lambda i: data[i] + tvm.tirx.const(1, "float32"), name="once")
    twice = te.compute((64,), lambda i: once[i] * once[i], name="twice")
    schedule = Schedule(te.create_prim_func([data, twice]))
    schedule.bind(schedule.get_loops(schedule.get_sblock("twice"))[0], "threadIdx.x")
    with pytest.raises(RuntimeError, match=r"on the host|did you forget to bind"):
        build_launches(schedule.mod["main"], MALI, tmp_path / "l.json")
    assert not (tmp_path / "l.json").exists()
