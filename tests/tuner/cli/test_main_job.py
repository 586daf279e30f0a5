"""The main job on a small network with the real command: tune, build, run, compare; again; interrupted; killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import templates  # noqa: F401  (registers the built-in templates)
from templates.template import search_space, template_named
from templates.workloads import Conv2d
from tests.tuner.cli.conftest import TUNE, everything_under, run_tune
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device
from tuner.graph import load_onnx
from tuner.module import build, load, random_inputs
from tuning_db.record import Workload
from tuning_db.store import open_db

COMMON = ("--device", "cpu", "--threads", 1, "--db", "t.db")


@pytest.fixture(scope="module")
def tuned_folder(tmp_path_factory):
    """A folder with a network and a database in which it was tuned for a few trials, and what the command said."""
    folder = tmp_path_factory.mktemp("tuned")
    tiny = write_tiny_network(folder / "tiny.onnx")
    done = run_tune("model", tiny.name, *COMMON, "--trials", 34, "--searcher", "random", "--json", cwd=folder)
    assert done.status == 0, done.err
    return folder, done.json()


@pytest.fixture
def tuned(tuned_folder, tiny):
    """The same in the test's own folder."""
    folder, result = tuned_folder
    shutil.copy(folder / "t.db", tiny.with_name("t.db"))
    return result


def _inputs(folder: Path) -> dict[str, np.ndarray]:
    inputs = {"data": np.random.default_rng(3).standard_normal((1, 3, 16, 16), dtype=np.float32)}
    np.savez(folder / "x.npz", **inputs)
    return inputs


@pytest.mark.usefixtures("tuned")
def test_a_budget_that_earlier_runs_used_up_is_said(tune, tiny):
    again = tune("model", tiny.name, *COMMON, "--trials", 34)
    assert again.status == 0
    assert "nothing was measured: earlier runs with this database have used up --trials 34" in again.err
    assert "give --trials 68" in again.err


def test_tunes_builds_runs_and_compares(tune, tiny, tuned, tmp_path):
    assert tuned["trials"] == 34
    assert tuned["stopped"] == "trials"
    assert {task["workload"]["op"] for task in tuned["tasks"]} == {"conv2d", "dense"}
    assert all(task["best_seconds"] > 0 for task in tuned["tasks"])

    built = tune("build", tiny.name, *COMMON, "-o", "out", "--json")
    assert built.status == 0, built.err
    assert built.json()["untuned"] == []
    assert max(built.json()["relative_error"].values()) < 1e-4
    assert {operator["source"] for operator in built.json()["operators"]} == {"device"}

    inputs = _inputs(tmp_path)
    ran = tune("run", "out", "--input", "x.npz", "--output", "y.npz", "--json")
    assert ran.status == 0, ran.err
    (expected,) = ReferenceEvaluator(onnx.load(tiny)).run(None, inputs)
    with np.load(tmp_path / "y.npz") as outputs:
        (name,) = outputs.files
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        np.testing.assert_array_equal(outputs[name], load(tmp_path / "out")(inputs)[name])

    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    compared = tune("bench", "out", "--against", "ort", "--rounds", 3, "--minutes", 0.01, "--json")
    assert compared.status == 0, compared.err
    result = compared.json()
    (peer,) = result["peers"]
    assert len(result["ours"]["block_seconds"]) == len(peer["block_seconds"]) == 3
    assert peer["relative_error"] < 1e-4
    assert peer["times_better"] * peer["latency_ratio"] == pytest.approx(1)
    assert peer["times_better"] == pytest.approx(peer["median_seconds"] / result["ours"]["median_seconds"])
    anchors = [call for call in result["profile"]["calls"] if call["workload"]]
    assert len(anchors) == 4
    assert all(
        call["gflops"] / result["profile"]["peak_gflops"] == pytest.approx(call["share_of_peak"]) for call in anchors
    )


def test_the_second_run_measures_nothing(tune, tiny, tuned):
    again = tune("model", tiny.name, *COMMON, "--trials", 34, "--json").json()
    assert again["new_trials"] == 0
    assert [task["best_config"] for task in again["tasks"]] == [task["best_config"] for task in tuned["tasks"]]
    stats = tune("db", "stats", "--db", "t.db", "--json").json()
    assert (stats["workloads"], stats["devices"]) == (4, 1)


def test_no_winograd_tunes_without_it(tune, tmp_path):
    workload = Conv2d(1, 16, 54, 54, 64, (3, 3), padding=(1, 1, 1, 1)).workload(["bias", "relu"])
    space = search_space(workload, open_device("cpu", 1).target)
    assert space is not None
    assert not all(template_named(part.template).exact for part in space.spaces)  # there is something to forbid
    words = ("op", "conv2d", "--shape", "1,16,54,54,64,3,3", "--padding", 1, "--epilogue", "bias,relu")
    done = tune(*words, *COMMON, "--trials", 8, "--no-winograd", "--json")
    assert Workload.from_dict(done.json()["tasks"][0]["workload"]) == workload
    with open_db(tmp_path / "t.db") as store:
        tried = {trial.config.template for trial in store.trials(workload)}
    assert tried
    assert all(template_named(name).exact for name in tried)


def test_an_operator_of_a_quantised_file_is_tuned_without_the_file(tune):
    words = ("op", "conv2d", "--shape", "1,16,8,8,16,1,1", "--dtype", "uint8", *COMMON, "--trials", 1)
    found = [tune(*words, "--epilogue", tokens, "--json").json()["tasks"][0] for tokens in ("relu", "real,bias")]
    wanted = [("real", "scale", "relu", "quantize"), ("real", "bias")]
    assert [Workload.from_dict(task["workload"]) for task in found] == [
        Conv2d(1, 16, 8, 8, 16, (1, 1)).workload(tokens, "uint8") for tokens in wanted
    ]
    refused = tune(*words, "--epilogue", "real,offset")
    assert refused.status == 2
    assert "--epilogue real,offset: 'offset' stands before the sums are real numbers" in refused.error


def test_an_interrupt_keeps_what_was_measured_and_says_how_to_go_on(tune, tiny):
    words = ["model", tiny.name, *COMMON, "--preset", "exhaustive", "--json"]
    with subprocess.Popen(
        [TUNE, *map(str, words)], cwd=tiny.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "in this session" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "run the same command again" in err
    assert "Traceback" not in err
    assert out.count("\n") == 1
    stats = tune("db", "stats", "--db", "t.db", "--json").json()
    assert stats["trials"] >= 1
    assert stats["in_flight"] == 0


def test_a_killed_run_goes_on(tune, tiny):
    words = ["model", tiny.name, *COMMON, "--trials", "60"]
    with subprocess.Popen(
        [TUNE, *map(str, words)], cwd=tiny.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "in this session" in line:
                break
        process.kill()
    assert tune("db", "verify", "--db", "t.db").status == 0
    kept = tune("db", "stats", "--db", "t.db", "--json").json()["trials"]
    assert kept >= 1
    after = tune("model", tiny.name, *COMMON, "--trials", kept + 8, "--json")
    assert after.status == 0, after.err
    assert after.json()["trials"] >= kept + 8 - 1  # a config compared again is a trial, not another config


def test_an_untuned_network_is_built_and_says_so(tune, tiny):
    assert tune("op", "dense", "--shape", "1,16,32", *COMMON, "--trials", 1).status == 0
    done = tune("build", tiny.name, *COMMON, "-o", "out", "--json")
    assert done.status == 0, done.err
    assert len(done.json()["untuned"]) == 4
    assert "have not been tuned" in done.err


def test_building_again_replaces_a_module_and_nothing_else(tune, tiny, tuned, tmp_path):
    assert tuned["trials"] == 34
    for _ in range(2):
        assert tune("build", tiny.name, *COMMON, "-o", "out").status == 0
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "precious.txt").write_text("mine")
    before = everything_under(tmp_path)
    done = tune("build", tiny.name, *COMMON, "-o", "notes")
    assert done.status == 2
    assert "notes: exists and is not a built module" in done.err
    assert everything_under(tmp_path) == before


def test_a_module_runs_without_inputs_of_ones_own(tune, built_module, tmp_path):
    done = tune("run", built_module, "--output", "y.npz", "--json")
    assert done.status == 0, done.err
    assert "random inputs (data 1x3x16x16 float32)" in done.err
    (name,) = done.json()["outputs"]
    module = load(built_module)
    expected = module(random_inputs(module.manifest.inputs, seed=0))
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs[name], expected[name])


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda _: None, "no such file"),
        (lambda path: path.write_bytes(b"not an archive"), "not an .npz"),
        (lambda path: np.savez(path, other=np.zeros(3)), "unknown input 'other'"),
        (lambda path: np.savez(path, data=np.array([None], dtype=object)), "not an .npz"),
    ],
    ids=["missing", "garbage", "unknown", "objects"],
)
def test_bad_inputs_of_a_module(tune, built_module, tmp_path, write, says):
    write(tmp_path / "bad.npz")
    done = tune("run", built_module, "--input", "bad.npz", "--output", "y.npz")
    assert done.status == 2
    assert says in done.error
    assert not (tmp_path / "y.npz").exists()


@pytest.fixture(scope="module")
def built_module(tmp_path_factory):
    """A module built without any tuning."""
    folder = tmp_path_factory.mktemp("module")
    build(load_onnx(write_tiny_network(folder / "tiny.onnx")), open_device("cpu", 1), folder / "out")
    return folder / "out"


def test_bench_refuses_what_it_cannot_compare(tune, built_module, tmp_path):
    for words, says in [
        (("--against", "tensorrt"), "known: ort, openvino, opencv, ncnn, mnn, default"),
        (("--against", " , "), "name peers with --against, or give --profile"),
        (("--against", "default", "--model", "missing.onnx"), "no such file"),
        (("--against", "default", "--threads", 4096), "4096 threads"),
    ]:
        done = tune("bench", built_module, *words)
        assert done.status == 2
        assert says in done.error
    other = write_tiny_network(tmp_path / "other.onnx", seed=1)
    done = tune("bench", built_module, "--against", "default", "--model", other)
    assert done.status == 2
    assert "is not the file" in done.error


def test_a_profile_tells_every_call_and_needs_no_peer(tune, built_module):
    done = tune("bench", built_module, "--profile", "--rounds", 1, "--minutes", 0.001, "--json")
    assert done.status == 0, done.err
    found = done.json()
    assert found["peers"] == []
    calls = found["profile"]["calls"]
    assert all(call["seconds"] > 0 for call in calls)
    operators = [call["workload"]["op"] for call in calls if call["workload"] is not None]
    assert operators.count("conv2d") == 3
    assert "Conv" in done.err  # the table


@pytest.mark.sampled(2)
def test_a_peer_that_is_not_installed_is_skipped_or_refused(tune, built_module, tmp_path):
    """A folder ahead on the path hides the package: importing from it fails as if it were not there."""
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'openvino' else find(name, *a)\n"
    )
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    only = tune("bench", built_module, "--against", "openvino", env=env)
    assert only.status == 2
    assert "pip install openvino" in only.error
    both = tune("bench", built_module, "--against", "openvino,ort", "--rounds", 1, "--minutes", 0.001, env=env)
    assert both.status == 0, both.err
    assert "openvino is skipped: not installed: pip install openvino" in both.err
