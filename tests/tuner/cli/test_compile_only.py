"""`--target PROFILE --compile-only` on the command line, with a template of a user's own."""

from __future__ import annotations

import pytest

from tests.tuner.cli.conftest import everything_under
from tests.tuner.measure.offline.support import compilers_or_skip
from tuner.devices.profiles import all_profiles, profile_named

PLUGIN = """
from tvm import te
from tvm.s_tir import Schedule
from templates.gpu.limits import gpu_limits
from templates.space import Knob, Space
from templates.template import PLAIN, AnchorTemplate, Layouts, register
from templates.workloads import anchor_of


class OneItemAValue(AnchorTemplate):
    name, op = "user.dense", "dense"

    def layouts(self, workload, target):
        return Layouts(PLAIN, PLAIN)

    def space(self, workload, target):
        if gpu_limits(target) is None or workload.epilogue:
            return None
        return Space(self.name, (Knob("items", (64, 1024)),), seeds=({"items": 64}, {"items": 1024}))

    def pack_weight(self, workload, target, config, weight):
        return weight

    def prim_func(self, workload, target, config):
        dense = anchor_of(workload)
        data = te.placeholder(dense.data_shape, name="data")
        weight = te.placeholder(dense.weight_shape, name="weight")
        k = te.reduce_axis((0, dense.in_features), "k")
        out = te.compute(dense.out_shape, lambda i, j: te.sum(data[i, k] * weight[j, k], axis=k), name="out")
        schedule = Schedule(te.create_prim_func([data, weight, out]))
        fused = schedule.fuse(*schedule.get_loops(schedule.get_sblock("out"))[:2])
        group, item = schedule.split(fused, [None, config["items"]])
        schedule.bind(group, "blockIdx.x")
        schedule.bind(item, "threadIdx.x")
        return schedule.mod["main"]


register(OneItemAValue())
"""
DENSE = ("op", "dense", "--shape", "8,32,256", "--plugin", "mine.py", "--template", "user.dense", "--compile-only")


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    return tmp_path


def test_profiles_are_listed(tune):
    known = [profile.name for profile in all_profiles()]
    listed = tune("devices", "--profiles", "--json").json()["profiles"]
    assert [profile["name"] for profile in listed] == known
    assert listed[known.index("mali-t860")]["key"]["family"] == "mali"
    shown = tune("devices", "--profiles")
    assert shown.status == 0
    assert all(name in shown.out for name in known)


@pytest.mark.usefixtures("plugin")
def test_a_task_is_compiled_and_each_kernel_shown(tune, tmp_path):
    compilers_or_skip(profile_named("mali-t860"))
    before = {name for name in everything_under(tmp_path) if "__pycache__" not in name}
    done = tune(*DENSE, "--target", "mali-t860", "--json")
    assert done.status == 0, done.err
    found = done.json()
    assert (found["profile"], found["verdicts"], found["failed"]) == ("mali-t860", {"ok": 1, "limit": 1}, [])
    good, bad = found["tasks"][0]["configs"]
    assert good["kernels"][0]["group"] == [64, 1, 1]
    assert bad["message"] == "main_kernel: work-group of 1024 items, the device allows 256"
    assert "user.dense: limit, for one: main_kernel: work-group of 1024 items" in done.err
    assert {name for name in everything_under(tmp_path) if "__pycache__" not in name} == before


@pytest.mark.usefixtures("plugin")
def test_the_table_has_registers_where_a_compiler_tells(tune):
    compilers_or_skip(profile_named("jetson-nano"))
    done = tune(*DENSE, "--target", "jetson-nano")
    assert done.status == 0, done.err
    assert "Nvidia Jetson Nano" in done.out
    (row,) = [line for line in done.out.splitlines() if "main_kernel" in line]
    assert "8x32 -> 256" in row
    registers, spilled, private, local = row.split()[-4:]
    assert int(registers) > 0
    assert (spilled, private, local) == ("0", "0", "0")
    assert "1 of 1 tasks compile for jetson-nano (nvrtc), 2 of 2 configs" in done.out


@pytest.mark.usefixtures("plugin")
def test_a_task_without_a_config_that_compiles_is_exit_3(tune):
    compilers_or_skip(profile_named("mali-t860"))
    done = tune(*DENSE, "--epilogue", "relu", "--target", "mali-t860", "--json")
    assert done.status == 3
    assert done.err.splitlines()[-1] == "tune: no config compiles for 1 of 1 tasks: dense"
    assert done.json()["failed"] == ["dense"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--target", "mali-t999", "--compile-only"), "unknown profile 'mali-t999': give one of intel-hd505"),
        (("--target", "mali-t860"), "add --compile-only"),
        (("--compile-only",), "--compile-only needs --target PROFILE"),
        (("--compile-only", "--target", "mali-t860", "--trials", "8"), "--trials: nothing is measured"),
        (("--compile-only", "--target", "mali-t860", "--device", "cuda:0"), "--device: nothing is measured"),
        (("--compile-only", "--target", "mali-t860", "--template", "no.such"), "no.such"),
        (("--configs", "8"), "--configs goes with --compile-only"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(tune, tiny, tmp_path, options, says):
    before = everything_under(tmp_path)
    done = tune("model", tiny.name, *options)
    assert done.status == 2
    assert says in done.error
    assert everything_under(tmp_path) == before


def test_a_missing_compiler_is_one_line(tune, tiny, tmp_path):
    done = tune("model", tiny.name, "--target", "aisage", "--compile-only", env={"PATH": str(tmp_path)})
    assert done.status == 2
    assert done.error == "tune: clang is not installed, which checks OpenCL C: apt-get install clang"
