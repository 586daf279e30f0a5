"""A comparison of a built module with a peer: what it says follows from the blocks that it timed."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from rich.console import Console

from templates.workloads import Dense
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device, usable_cpus
from tuner.errors import BadInput
from tuner.graph import load_onnx
from tuner.module import build, random_inputs, read_manifest
from tuner.report.bench import BenchOptions, Comparison, Measured, compare
from tuner.report.operators import Call, Profile
from tuner.report.tables import comparison_table, operator_table

INPUTS = {"data": np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=np.float32)}


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> tuple[Path, Path]:
    """A module and the file that it was built from."""
    folder = tmp_path_factory.mktemp("bench")
    model = write_tiny_network(folder / "tiny.onnx")
    build(load_onnx(model), open_device("cpu", 1), folder / "module")
    return folder / "module", model


def _compare(network: tuple[Path, Path], peers: list[str], **options) -> Comparison:
    module, model = network
    conditions = BenchOptions(threads=1, cpus=tuple(usable_cpus()[:1]), rounds=2, block_seconds=0.01)
    return compare(module, model, peers, inputs=INPUTS, options=conditions, **options)


@pytest.fixture(scope="module")
def comparison(network) -> Comparison:
    return _compare(network, ["default"])


def _text(table) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_ratios_follow_from_the_blocks(comparison):
    (peer,) = comparison.peers
    assert peer.error < 1e-4
    assert comparison.skipped == {}
    for measured in (comparison.ours, peer):
        assert len(measured.blocks) == 2
        assert measured.seconds == median(measured.blocks)
        assert measured.steadiness == max(measured.blocks) / measured.seconds >= 1
        half, most, nearly_all = (measured.percentiles[each] for each in (50, 90, 99))
        assert 0 < half <= most <= nearly_all
    assert comparison.times_better(peer) == peer.seconds / comparison.ours.seconds
    said = comparison.as_dict()
    assert said["peers"][0]["times_better"] * said["peers"][0]["latency_ratio"] == pytest.approx(1)


def test_memory_of_the_processes_and_sizes_of_the_module_are_told(comparison, network):
    """A process with Python and TVM has more than 50 MiB, whatever this one has."""
    said = comparison.as_dict()
    assert said["ours"]["process_peak_bytes"] > 50 << 20
    assert said["peers"][0]["process_peak_bytes"] > 50 << 20
    sizes = read_manifest(network[0]).sizes
    assert sizes is not None
    inference = sizes.values + sizes.workspaces
    assert said["sizes"] == {**asdict(sizes), "inference": inference, "peak": sizes.weights + inference}


def test_the_profile_covers_every_anchor(comparison):
    profile = comparison.profile
    anchors = [call for call in profile.calls if call.workload is not None]
    assert [call.workload.op for call in anchors] == ["conv2d", "conv2d", "conv2d", "dense"]
    assert all(call.config is not None and call.seconds > 0 for call in anchors)
    assert anchors[0].flop == 2 * 16 * 16 * 16 * 3 * 9
    assert profile.peaks["float32"] > 0
    assert anchors[0].flops == anchors[0].flop / anchors[0].seconds


def test_a_peer_that_fails_is_skipped_with_the_reason(network, tmp_path):
    module, _ = network
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    conditions = BenchOptions(threads=1, cpus=tuple(usable_cpus()[:1]), rounds=1, block_seconds=0.01)
    comparison = compare(module, broken, ["default"], inputs=INPUTS, options=conditions)
    assert comparison.peers == ()
    assert "default on" in comparison.skipped["default"]
    assert "failed" in comparison.skipped["default"]


def test_an_unknown_peer_is_refused_before_anything_starts(network):
    said: list[str] = []
    with pytest.raises(BadInput, match="unknown peer"):
        _compare(network, ["default", "tensorrt"], progress=said.append)
    assert said == []


def test_inferences_run_at_the_same_time_on_cpus_of_their_own(network):
    module, model = network
    cpus = tuple(usable_cpus()[:2])
    if len(cpus) < 2:
        pytest.skip("two streams need two cores")
    conditions = BenchOptions(threads=1, cpus=cpus, rounds=2, block_seconds=0.05, streams=2)
    found = compare(module, model, ["ort"], inputs=INPUTS, options=conditions)
    (peer,) = found.peers
    for measured in (found.ours, peer):
        assert found.throughput(measured) == 2 / measured.seconds
        assert measured.runs >= 2 * 2
    assert found.as_dict()["ours"]["inferences_per_second"] == found.throughput(found.ours)
    assert "2 at the same time with 1 thread each" in _text(comparison_table(found))


def test_random_inputs_fit_the_module(network):
    manifest_inputs = load_onnx(network[1]).inputs
    (name, array), *rest = random_inputs(manifest_inputs, 0).items()
    assert (name, array.shape, array.dtype, rest) == ("data", (1, 3, 16, 16), np.float32, [])


def _measured(name: str, *blocks: float, error: float | None = None) -> Measured:
    return Measured.of(name, f"{name} 1.0", [[block] for block in blocks], peak_bytes=300 << 20, error=error)


def test_tables_show_the_figures():
    call = Call("conv1", "conv2d_direct", 1e-3, None, None)
    vm = Call("alloc", "vm.builtin.alloc_tensor", 1e-6, None, None)
    profile = Profile((call, vm), {"float32": 2e11, "int8": 8e11})
    peer = _measured("peer", 0.004, 0.005, 0.006, error=3e-6)
    comparison = Comparison(_measured("ours", 0.002, 0.0025, 0.003), (peer,), 2, (0, 1), {}, profile)
    text = _text(comparison_table(comparison))
    assert "2 threads" in text
    assert all(figure in text for figure in ("2.50", " 400 ", " 300 ", "0.50", "3.0e-06", "5.80"))
    assert "whole process" in text
    text = _text(operator_table(profile))
    assert "conv1" in text
    assert "virtual machine" in text
    assert "float32 200 GF/s, int8 800 Gop/s" in " ".join(text.split())
    assert _text(operator_table(Profile((call,) * 30, {"float32": 2e11}), most=25)).count("conv1") == 25


def test_a_share_is_of_the_peak_of_the_own_precision():
    peaks = {"float32": 2e11, "int8": 8e11}
    float32, integers, halves = (
        Call(dtype, dtype, 1e-3, Dense(100, 1000, 1000).workload(dtype=dtype), None)
        for dtype in ("float32", "uint8", "float16")
    )
    profile = Profile((float32, integers, halves), peaks)
    assert profile.share(float32) == pytest.approx(1.0)
    assert profile.share(integers) == pytest.approx(0.25)
    assert profile.share(halves) is None
    told = profile.as_dict()
    assert [call["precision"] for call in told["calls"]] == ["float32", "int8", "float16"]
    assert [call["share_of_peak"] for call in told["calls"]] == [profile.share(call) for call in profile.calls]
    assert told["peaks_gflops"] == {"float32": 200.0, "int8": 800.0}
    rows = [line.split() for line in _text(operator_table(profile)).splitlines()]
    assert {row[0]: row[-2] for row in rows if row and row[0] in ("float32", "uint8", "float16")} == {
        "float32": "100%",
        "uint8": "25%",
        "float16": "-",
    }
