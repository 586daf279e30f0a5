"""AutoTVM's logs: what a record says of workload, device, knobs and times, and what cannot be mapped."""

from __future__ import annotations

import copy
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.workloads import Conv2d, Dense
from tests.tuner.interop import logs
from tuner.interop.autotvm import device_of, from_record
from tuning_db.errors import DatabaseError
from tuning_db.importing import import_log
from tuning_db.record import Config, DeviceKey, Failure, FailureKind
from tuning_db.rows import from_record as from_ours
from tuning_db.rows import to_record
from tuning_db.store import open_db

CONV = Conv2d(1, 64, 28, 28, 64, (3, 3), (1, 1), (1, 1, 1, 1)).workload()


def test_a_record_becomes_a_trial_that_is_nobodys_best() -> None:
    trial = from_record(logs.CUDA)
    assert trial.workload == CONV
    assert trial.device == DeviceKey("cuda", "nvidia", "tx2", {})
    assert trial.config == Config(
        "autotvm/conv2d_nchw.cuda",
        {
            "tile_f": (2, 2, 8, 2),
            "tile_y": (14, 1, 2, 1),
            "tile_x": (1, 4, 7, 1),
            "tile_rc": (16, 4),
            "tile_ry": (1, 3),
            "tile_rx": (3, 1),
            "auto_unroll_max_step": 512,
            "unroll_explicit": 1,
        },
    )
    assert trial.times == (2e-4, 2.5e-4, 2.1e-4)
    assert trial.error is None  # nobody has checked it
    assert trial.created == datetime.fromtimestamp(1600000000.25, UTC)
    assert trial.versions == {"tvm": "0.8.0"}
    assert from_ours(to_record(trial)) == trial


@pytest.mark.parametrize(
    ("record", "workload"),
    [
        (logs.SPATIAL_PACK, CONV),
        (logs.PACKED, Conv2d(1, 64, 56, 56, 64, (3, 3), (1, 1), (1, 1, 1, 1)).workload()),
        (logs.DEPTHWISE, Conv2d(1, 32, 28, 28, 32, (3, 3), (2, 2), (1, 1, 1, 1), groups=32).workload()),
        (logs.DENSE, Dense(1, 512, 1000).workload(("bias",))),
    ],
    ids=["spatial pack", "x86", "depthwise", "dense"],
)
def test_operators(record: dict[str, Any], workload: Any) -> None:
    assert from_record(record).workload == workload


def test_sizes_may_be_written_in_many_ways() -> None:
    args = [logs.tensor(2, 8, 9, 7, dtype="float16"), logs.tensor(6, 4, 3, 1, dtype="float16"), 2, [1, 0], 1, "float16"]
    trial = from_record(logs.record(logs.JETSON, "group_conv2d_nchw.cuda", [*args, 2], []))
    conv = Conv2d(2, 8, 9, 7, 6, (3, 1), (2, 2), (1, 0, 1, 0), (1, 1), groups=2)
    assert trial.workload == conv.workload((), "float16")


@pytest.mark.parametrize(
    ("target", "device"),
    [
        (logs.MALI, ("opencl", "mali", "rk3588")),
        ("opencl -device=intel_graphics -model=unknown", ("opencl", "intel", "unknown")),
        ("opencl -keys=adreno,opencl,gpu -device=adreno", ("opencl", "adreno", "unknown")),
        ('{"kind": "cuda", "model": "jetson-nano", "keys": ["cuda", "gpu"]}', ("cuda", "nvidia", "jetson-nano")),
        (logs.SKYLAKE, ("cpu", "x86_64-avx512", "skylake-avx512")),
        ("llvm -mcpu=core-avx2", ("cpu", "x86_64-avx2", "core-avx2")),
        ("llvm -device=arm_cpu -model=rk3399 -mtriple=aarch64-linux-gnu", ("cpu", "aarch64-neon", "rk3399")),
    ],
)
def test_targets(target: str, device: tuple[str, str, str]) -> None:
    assert device_of(target) == DeviceKey(*device, {})


def test_failures_keep_their_kind() -> None:
    trial = from_record(logs.FAILED)
    assert trial.failure == Failure(FailureKind.RUN_TIMEOUT, "AutoTVM's error 7")
    assert trial.times == ()


def changed(record: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**record, **values}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (logs.TRANSPOSED, "conv2d_transpose_nchw.cuda: no operator of ours"),
        (changed(logs.CUDA, version=0.1), "format 0.1: only 0.2"),
        ({"i": [], "r": [], "v": 0.1}, "format 0.1: only 0.2"),
        (changed(logs.CUDA, input=["vta -model=pynq", *logs.CUDA["input"][1:]]), "no device of ours"),
        (
            logs.record(
                logs.JETSON, "dense.gpu", [logs.tensor(1, 8, dtype="int8"), logs.tensor(4, 8, dtype="int8"), None], []
            ),
            "data of type int8",
        ),
        (
            logs.record(
                logs.MALI, "conv2d_nchw_winograd.mali", [logs.tensor(1, 8, 9, 9), logs.tensor(6, 6, 2, 8, 4)], []
            ),
            "in a layout of its own",
        ),
        (
            logs.record(
                logs.MALI, "conv2d_nchw.cuda", [*logs.conv_args(8, 9, 4, 3, 1, 1)[:1], logs.tensor(4, 3, 3, 3)], []
            ),
            "damaged",
        ),
        (changed(logs.CUDA, result=[]), "damaged"),
    ],
)
def test_what_cannot_be_mapped_is_said(record: dict[str, Any], says: str) -> None:
    with pytest.raises(DatabaseError, match=says):
        from_record(record)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inside for place in places(child, (*path, key)))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(logs.ALL), st.data())
def test_a_damaged_record_is_a_trial_or_one_clear_line(record: dict[str, Any], data: st.DataObject) -> None:
    damaged = copy.deepcopy(record)
    *path, last = data.draw(st.sampled_from(places(damaged)[1:]))
    holder: Any = damaged
    for key in path:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[last] = data.draw(JSON)
    else:
        del holder[last]
    assert read_or_said(damaged) in ("autotvm/", "said")


def read_or_said(record: Any) -> str:
    try:
        return from_record(record).config.template[:8]
    except DatabaseError as error:
        return "said" if "\n" not in str(error) else str(error)


def test_a_log_that_autotvm_has_written(tmp_path: Path) -> None:
    """Every line of it becomes a trial, or is refused for what there is no counterpart to."""
    log = os.environ.get("EDGETUNE_TEST_AUTOTVM_LOG")
    if log is None:
        pytest.skip("EDGETUNE_TEST_AUTOTVM_LOG names no log of AutoTVM's, as one of github.com/tlc-pack/tophub")
    lines = [line for line in Path(log).read_bytes().splitlines(keepends=True) if line[:1] not in (b"#", b"\n")]
    with open_db(tmp_path / "t.db") as store:
        report = import_log(store, lines, lambda data, _: from_record(data))
        again = import_log(store, lines, lambda data, _: from_record(data))
        trials = list(store.trials())
    assert report.added > 0
    assert report.added + report.known + len(report.bad) == len(lines)
    assert [bad for bad in report.bad if "damaged" in bad.reason or not bad.reason] == []
    assert (again.added, again.bad) == (0, report.bad)
    assert len(trials) == report.added


@pytest.mark.parametrize("seconds", [0.0, -1e-4])
def test_a_time_that_nothing_takes_costs_its_line_alone(tmp_path: Path, seconds: float) -> None:
    damaged = copy.deepcopy(logs.CUDA)
    damaged["result"][0] = [2e-4, seconds]
    lines = [json.dumps(record).encode() + b"\n" for record in (logs.DENSE, damaged, logs.CUDA)]
    with open_db(tmp_path / "t.db") as store:
        report = import_log(store, lines, decode=lambda data, _: from_record(data))
        assert (report.added, [bad.number for bad in report.bad]) == (2, [2])
        assert report.bad[0].reason == f"times (0.0002, {seconds}) are not all positive and finite seconds"
