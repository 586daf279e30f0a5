"""MetaSchedule's databases, made here by MetaSchedule: what their functions compute, and what cannot be mapped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tvm import te, tirx, topi
from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from templates.workloads import Conv2d, Dense
from tuner.interop.functions import workload_of
from tuner.interop.metaschedule import RECORDS, WORKLOADS, is_database, read
from tuning_db.errors import DatabaseError
from tuning_db.logs import BadLine
from tuning_db.record import DeviceKey, FailureKind, Trial, Workload

TARGET = Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
CONV = Conv2d(1, 8, 9, 7, 6, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2))


def function(operator: Conv2d | Dense, *epilogue: str) -> tirx.PrimFunc:
    """As TVM's operators and a fusion of them are."""
    data = te.placeholder(operator.data_shape, name="data")
    weight = te.placeholder(operator.weight_shape, name="weight")
    arguments = [data, weight]
    if isinstance(operator, Dense):
        value = topi.nn.matmul(data, weight, transpose_b=True)
    elif operator.is_depthwise:
        value = topi.nn.depthwise_conv2d_nchw(
            data, weight, operator.strides, list(operator.padding), list(operator.dilation)
        )
    else:
        value = topi.nn.conv2d_nchw(data, weight, operator.strides, list(operator.padding), list(operator.dilation))
    for number, token in enumerate(epilogue):
        shape = (1, operator.out_shape[1], *(1 for _ in operator.out_shape[2:]))
        extra = {"bias": shape, "add": operator.out_shape, "row": (1, 1, *operator.out_shape[2:])}
        if token in extra:
            arguments.append(te.placeholder(extra[token], name=f"extra{number}"))
            value = topi.add(value, arguments[-1])
        else:
            value = {"relu": topi.nn.relu, "sigmoid": topi.sigmoid}[token](value)
    return te.create_prim_func([*arguments, value])


@pytest.mark.parametrize(
    "operator",
    [
        CONV,
        Conv2d(2, 4, 5, 5, 3, (1, 1)),
        Conv2d(1, 6, 8, 8, 6, (3, 3), (2, 2), (1, 1, 1, 1), groups=6),
        Dense(3, 5, 7),
    ],
    ids=["convolution", "1x1", "depthwise", "dense"],
)
@pytest.mark.parametrize("epilogue", [(), ("bias",), ("bias", "relu"), ("bias", "add", "relu"), ("relu", "add")])
def test_functions(operator: Conv2d | Dense, epilogue: tuple[str, ...]) -> None:
    assert workload_of(function(operator, *epilogue)) == operator.workload(epilogue)


def one_block(compute: Callable[..., Any], *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    operands = [te.placeholder(shape) for shape in shapes]
    return te.create_prim_func([*operands, compute(*operands)])


@pytest.mark.parametrize(
    ("func", "says"),
    [
        (function(CONV, "sigmoid"), "epilogue of ours"),
        (function(CONV, "row"), "its epilogue adds a tensor of shape"),
        (one_block(topi.nn.matmul, (3, 4), (4, 5)), "no operator of ours"),
        (one_block(topi.nn.relu, (3, 4)), "sums up in 0 blocks"),
        (one_block(lambda x: topi.nn.softmax(x), (3, 4)), "sums up in 2 blocks"),
        (one_block(topi.nn.batch_matmul, (2, 3, 4), (2, 5, 4)), "no operator of ours"),
        (one_block(lambda a, b: topi.nn.conv2d_nhwc(a, b, 1, 0, 1), (1, 8, 8, 4), (3, 3, 4, 6)), "no operator of ours"),
        (
            one_block(lambda a, b: topi.nn.group_conv2d_nchw(a, b, 1, 0, 1, 2), (1, 8, 6, 6), (6, 4, 3, 3)),
            "not linear|no operator of ours",
        ),
    ],
    ids=["sigmoid", "row", "not transposed", "no sums", "softmax", "batches", "NHWC", "groups"],
)
def test_what_is_no_operator_of_ours_is_said(func: tirx.PrimFunc, says: str) -> None:
    with pytest.raises(DatabaseError, match=says):
        workload_of(func)


def database(folder: Path, *funcs: tuple[tirx.PrimFunc, list[list[float]]]) -> Path:
    """Of so many records a function, with these run times."""
    folder.mkdir()
    made = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))
    for func, records in funcs:
        module = IRModule({"main": func})
        workload = made.commit_workload(module)
        for seconds in records:
            schedule = Schedule(module)
            loop = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[-1])[-1]
            schedule.split(loop, schedule.sample_perfect_tile(loop, 2, decision=[1, int(schedule.get(loop).extent)]))
            info = ms.arg_info.ArgInfo.from_prim_func(func)
            made.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, seconds, TARGET, info))
    return folder


def test_records_become_trials_that_are_nobodys_best(tmp_path: Path) -> None:
    folder = database(
        tmp_path / "ms", (function(CONV, "bias", "relu"), [[2e-3, 3e-3], [1e10]]), (function(CONV, "sigmoid"), [[1e-3]])
    )
    assert is_database(folder)
    first, failed, unmapped = read(folder)
    assert isinstance(first, Trial)
    assert first.workload == CONV.workload(("bias", "relu"))
    assert first.device == DeviceKey("cpu", "x86_64-avx512", "skylake-avx512", {})
    assert first.times == pytest.approx((2e-3, 3e-3))
    assert first.error is None
    assert first.config.template == "metaschedule"
    assert {type(value) for name, value in first.config.knobs.items() if name != "trace"} == {tuple}
    assert isinstance(failed, Trial)
    assert failed.failure is not None
    assert failed.failure.kind == FailureKind.RUN
    assert failed.created > first.created
    assert isinstance(unmapped, BadLine)
    assert (unmapped.number, "epilogue of ours" in unmapped.reason) == (3, True)
    assert list(read(folder)) == [first, failed, unmapped]


def test_damage_is_said_line_by_line(tmp_path: Path) -> None:
    folder = database(tmp_path / "ms", (function(CONV), [[1e-3], [2e-3], [3e-3]]))
    lines = (folder / RECORDS).read_text().splitlines()
    (folder / RECORDS).write_text("\n".join([lines[0], lines[1][: len(lines[1]) // 2], "7", lines[2]]))
    found = list(read(folder))
    assert [type(item) for item in found] == [Trial, BadLine, BadLine, Trial]
    assert all("damaged" in item.reason and "\n" not in item.reason for item in found if isinstance(item, BadLine))
    number, _ = json.loads((folder / WORKLOADS).read_text())
    (folder / WORKLOADS).write_text(json.dumps([number, "AAAA"]))
    assert {type(item) for item in read(folder)} == {BadLine}


def test_workloads_are_those_of_our_own_import(tmp_path: Path) -> None:
    """What is imported meets what a network of ours asks for: keys are equal, not only similar."""
    (found,) = read(database(tmp_path / "ms", (function(Dense(1, 16, 4), "bias"), [[1e-3]])))
    assert isinstance(found, Trial)
    assert found.workload.key == Workload.from_dict(Dense(1, 16, 4).workload(("bias",)).as_dict()).key
