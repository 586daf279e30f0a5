"""`--dtype float16` on the command line: tune, build and run a network in half precision; what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import everything_under, result_and_reference
from tests.tuner.measure.offline.support import compilers_or_skip
from tuner.devices.profiles import profile_named


@pytest.mark.night
def test_tunes_builds_and_runs(tune, tiny, tmp_path):
    device = ("--device", f"opencl:{device_number('intel')}", "--db", "t.db")
    half = (*device, "--dtype", "float16")
    done = tune("model", tiny.name, *half, "--trials", 34, "--searcher", "random", "--json")
    assert done.status == 0, done.err
    assert {task["workload"]["dtype"] for task in done.json()["tasks"]} == {"float16"}

    built = tune("build", tiny.name, *half, "-o", "out", "--json")
    assert built.status == 0, built.err
    result = built.json()
    (error,) = result["relative_error"].values()
    assert (result["dtype"], result["untuned"]) == ("float16", [])
    assert f"half precision: largest error {error:.1e} relative to" in built.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["dtype"], manifest["errors"]) == ("float16", result["relative_error"])

    value, expected = result_and_reference(tune, tiny, "out")
    assert value.dtype == np.float32
    assert 0 < np.abs(value - expected).max() < 5e-3 * np.abs(expected).max()

    # The same database knows nothing of the network in float32.
    other = tune("build", tiny.name, *device, "-o", "single", "--json")
    assert (other.json()["dtype"], len(other.json()["untuned"])) == ("float32", 4)
    assert "half precision" not in other.err


@pytest.mark.parametrize("command", [("model",), ("build", "-o", "out")], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cpu", "this CPU has no arithmetic in halves (asimdhp on ARM); use float32"),
        ("pocl", "this device cannot store halves"),
    ],
)
def test_a_device_that_stores_no_halves(tune, tiny, tmp_path, command, device, says):
    name = device if device == "cpu" else f"opencl:{device_number(device)}"
    before = everything_under(tmp_path)
    done = tune(command[0], tiny.name, *command[1:], "--device", name, "--dtype", "float16")
    assert done.status == 2
    assert done.error.startswith(f"tune: float16 on {name} (")
    assert says in done.error
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize("command", [("model",), ("build", "-o", "out")], ids=lambda words: words[0])
def test_an_unknown_dtype(tune, tiny, tmp_path, command):
    before = everything_under(tmp_path)
    done = tune(command[0], tiny.name, *command[1:], "--dtype", "float8")
    assert (done.status, done.error) == (2, "tune: unknown dtype 'float8' (known: float32, float16, bfloat16)")
    assert everything_under(tmp_path) == before


def test_one_operator_on_the_cpu(tune):
    done = tune("op", "dense", "--shape", "1,64,64", "--dtype", "float16", "--trials", 1)
    assert done.status == 2
    assert "this CPU has no arithmetic in halves" in done.error


def test_every_task_compiles_for_a_board(tune, tiny):
    compilers_or_skip(profile_named("mali-t860"))
    words = ("--target", "mali-t860", "--compile-only", "--configs", 1, "--dtype", "float16", "--json")
    done = tune("model", tiny.name, *words)
    assert done.status == 0, done.err
    tasks = done.json()["tasks"]
    assert {task["workload"]["dtype"] for task in tasks} == {"float16"}
    assert all(task["compiles"] for task in tasks)
