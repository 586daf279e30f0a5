"""Help, usage errors, and where output goes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.tuner.cli.conftest import TUNE, everything_under
from tuner.cli.main import explain
from tuner.errors import NothingMeasured, VerificationFailed
from tuning_db.errors import DatabaseError

COMMANDS = (
    "doctor",
    "devices",
    "op",
    "quantize",
    "model",
    "plan",
    "build",
    "export",
    "run",
    "bench",
    "demo",
    "zoo",
    "replay",
    "report",
    "watch",
    "explain",
    "db",
    "board",
    "bundle",
    "pack",
)


def test_help_lists_every_command_and_needs_no_tvm(tune):
    done = tune("--help")
    assert done.status == 0
    assert all(f" {name} " in done.out for name in COMMANDS)
    blocked = tune("--help", env={"TVM_LIBRARY_PATH": "/nonexistent", "PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in blocked.err.splitlines()}
    assert "tuner.cli.db" in imported
    assert not {"tvm", "sqlalchemy", "alembic", "numpy", "onnx"} & imported


def test_versions_are_told_without_importing_tvm(tune):
    done = tune("--version", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.status == 0
    assert done.out == f"edgetune {version('edgetune')}, TVM {version('apache-tvm')}\n"
    assert not any(line.rpartition("|")[2].strip() == "tvm" for line in done.err.splitlines())


@pytest.mark.parametrize("command", [[sys.executable, "-m", "tuner"], [str(TUNE.with_name("edgetune"))]])
def test_it_runs_where_another_packages_command_is_in_the_way(command):
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert all(f" {name} " in done.stdout for name in COMMANDS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(tune, command):
    done = tune(command, "--help")
    assert done.status == 0
    assert f"tune {command}" in done.out
    assert done.err == ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["modle"], "No such command 'modle'"),
        (["--bogus"], "No such option: --bogus"),
        (["model"], "Missing argument"),
        (["model", "--trials", "many", "m.onnx"], "--trials"),
        (["model", "--trials", "0", "m.onnx"], "--trials"),
        (["model", "--preset", "fast", "m.onnx"], "'quick', 'normal', 'exhaustive'"),
        (["model", "--minutes", "-1", "m.onnx"], "--minutes"),
        (["op", "conv3d", "--shape", "1"], "known: conv2d, dense, argsort, attention, batch_matmul, compact"),
        (["op", "conv2d", "--shape", "1,2,3"], "give 7 numbers, not 3"),
        (["op", "conv2d", "--shape", "1,a,3,4,5,6,7"], "whole numbers"),
        (["op", "dense", "--shape", "1,2,3", "--stride", "2"], "dense has no --stride"),
        (["op", "dense", "--shape", "1,2,3", "--attr", "top=1"], "dense has no --attr"),
        (["op", "scan", "--shape", "1,2,3", "--epilogue", "relu"], "scan has no --epilogue"),
        (["op", "scan", "--shape", "1,2,3", "--groups", "2"], "scan has no --stride"),
        (["op", "scan", "--shape", "1,2,3", "--attr", "sort=1"], "known: kind, exclusive, reverse"),
        (["op", "scan", "--shape", "1,2,3", "--attr", "kind=mean"], "known: sum, product, max"),
        (["op", "scan", "--shape", "1,2,3", "--attr", "reverse=yes"], "'yes' is not 0 or 1"),
        (["op", "scan", "--shape", "1,2,3", "--dtype", "float16"], "known: float32, int32"),
        (["op", "argsort", "--shape", "1,5,9"], "the first 9 of 1 rows of 5"),
        (["op", "nms", "--shape", "1,1,9,9,9"], "nms needs --attr iou=..."),
        (["op", "roi_align", "--shape", "1,1,9,9,9,0,1"], "sizes are positive"),
        (["zoo", "resnet19"], "known: inception_v3"),
        (["zoo", "resnet18", "-o", "missing/m.onnx"], "does not exist"),
    ],
)
def test_a_usage_error_is_one_line_and_writes_nothing(tune, tmp_path, words, says):
    (tmp_path / "m.onnx").write_bytes(b"not looked at")
    before = everything_under(tmp_path)
    done = tune(*words)
    assert done.status == 2
    assert says in done.error
    assert done.out == ""
    assert everything_under(tmp_path) == before


def test_json_is_the_only_thing_on_standard_output(tune, tmp_path):
    done = tune("zoo", "squeezenet1.0", "-o", "m.onnx", "--json")
    assert done.status == 0
    assert done.json() == {"path": "m.onnx", "bytes": (tmp_path / "m.onnx").stat().st_size}
    assert "wrote m.onnx" in done.err


def test_an_error_under_json_is_one_object_too(tune):
    done = tune("zoo", "resnet19", "--json")
    assert done.status == 2
    assert done.json()["exit_status"] == 2
    assert done.error == f"tune: {done.json()['error']}"


def test_devices_are_listed_with_what_matters_for_speed(tune):
    device, *gpus = tune("devices", "--json").json()["devices"]
    assert device["name"] == "cpu"
    assert all(gpu["attrs"]["max_threads"] > 0 for gpu in gpus)
    assert 1 <= device["threads"] <= os.cpu_count()
    assert device["attrs"]["last_level_cache_bytes"] > 0


def test_doctor_finds_what_is_needed(tune):
    done = tune("doctor", "--json")
    assert done.status == 0, done.err
    states = {finding["what"]: finding["state"] for finding in done.json()["findings"]}
    assert all(states[what] in ("ok", "warning") for what in ("tvm", "linker", "cpu", "memory", "space here"))


def test_doctor_tells_the_whole_command_to_a_person(tune):
    said = tune("doctor", env={"COLUMNS": "80"}).out
    assert re.search(rf"^[\w-]+: {re.escape(sys.executable)} -m pip install 'edgetune\[\w+\]'$", said, re.MULTILINE)


def test_doctor_lists_every_opencl_driver_or_says_how_to_get_one(tune):
    findings = [f for f in tune("doctor", "--json").json()["findings"] if f["what"] == "opencl"]
    assert findings
    assert all("opencl:" in f["found"] for f in findings if f["state"] == "ok")
    if not any(f["state"] == "ok" for f in findings):
        assert any("install" in f["remedy"] for f in findings)


def test_doctor_says_how_to_get_the_compilers_for_other_devices(tune, tmp_path):
    findings = {f["what"]: f for f in tune("doctor", "--json", env={"PATH": str(tmp_path)}).json()["findings"]}
    for name, device, remedy in (("clang", "mali-t860", "clang"), ("ocloc", "intel-xe", "intel-opencl-icd")):
        assert findings[name]["state"] == "optional"
        assert device in findings[name]["found"]
        assert findings[name]["remedy"] == f"apt-get install {remedy}"
    assert findings["nvrtc"]["state"] == "ok" or findings["nvrtc"]["remedy"].endswith(
        "-m pip install 'edgetune[cuda-offline]'"
    )


def test_doctor_says_what_to_install_where_there_is_no_linker(tune, tmp_path):
    done = tune("doctor", "--json", env={"PATH": str(tmp_path)})
    assert done.status == 2
    (linker,) = [finding for finding in done.json()["findings"] if finding["what"] == "linker"]
    assert linker["state"] == "missing"
    assert "gcc" in linker["remedy"]


def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([TUNE, "zoo", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "tune: standard output or a file: No space left on device"


def test_a_reader_that_goes_away_is_no_message():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([TUNE, "zoo"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


def test_standard_output_that_is_closed_is_one_line():
    done = subprocess.run(["sh", "-c", f"{TUNE} zoo >&-"], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "tune: standard output is closed\n")


@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        (MemoryError(), "there is not enough memory for this", 2),
        (NothingMeasured("nothing could be measured"), "nothing could be measured", 3),
        (VerificationFailed("output 'y' is off\n  by 0.5"), "output 'y' is off by 0.5", 4),
        (DatabaseError("t.db is locked"), "t.db is locked", 2),
        (OSError(errno.ENOSPC, "No space left on device", "y.npz"), "y.npz: No space left on device", 2),
    ],
)
def test_every_expected_error_is_one_line_and_a_status(error, message, status):
    assert explain(error) == (message, status)


def test_a_programming_error_is_not_explained_away():
    assert explain(ZeroDivisionError("division by zero")) is None
