"""Loading and calling a module: right results, one clear line for every wrong use, profiles, threads."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.manifests import write_manifest
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device, usable_cpus
from tuner.devices.parallel import Pool, pool_library
from tuner.errors import BadInput, VerificationFailed
from tuner.graph import fuse, load_onnx
from tuner.module import Module, OnnxReference, VerifyOptions, build, load, operator_errors, random_inputs, verify
from tuner.module.cpu_features import missing_features, missing_on_board, required_features
from tuner.module.threads import PoolThreads
from tuner.module.verification import Reference


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_network(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def built(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built") / "tiny"
    build(load_onnx(model), open_device("cpu", 1), directory)
    return directory


@pytest.fixture
def module(built: Path) -> Module:
    return load(built)


def inputs_of(module: Module, seed: int = 0) -> dict[str, np.ndarray]:
    return random_inputs(module.manifest.inputs, seed)


def test_names_shapes_and_dtypes(module: Module) -> None:
    assert module.inputs == {"data": ((1, 3, 16, 16), "float32")}
    assert [shape for shape, _ in module.outputs.values()] == [(1, 10)]


def test_results_do_not_change_with_later_calls(module: Module, model: Path) -> None:
    reference = OnnxReference(model)
    results = [module(inputs_of(module, seed)) for seed in range(3)]
    for seed, result in enumerate(results):
        for name, value in reference(inputs_of(module, seed)).items():
            np.testing.assert_allclose(result[name], value, rtol=1e-4, atol=1e-5)


def test_calls_from_several_threads_take_turns(module: Module) -> None:
    inputs = [inputs_of(module, seed) for seed in range(4)]
    wanted = [module(given) for given in inputs]

    def differs(i: int) -> bool:
        call = module if i % 2 else module.in_place
        return any(not np.array_equal(value, wanted[i][name]) for name, value in call(inputs[i]).items())

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(differs, [i % 4 for i in range(200)]))


def test_clones_are_called_at_the_same_time(module: Module) -> None:
    inputs = [inputs_of(module, seed) for seed in range(4)]
    wanted = [module(given) for given in inputs]
    modules = [module, *(module.clone() for _ in range(3))]
    begin = threading.Barrier(len(modules))

    def differs(i: int) -> bool:
        begin.wait()
        results = [modules[i](inputs[i]) for _ in range(50)]
        return any(not np.array_equal(result[name], wanted[i][name]) for result in results for name in result)

    with ThreadPoolExecutor(len(modules)) as pool:
        assert not any(pool.map(differs, range(len(modules))))


def test_dlpack_tensors_and_views(module: Module) -> None:
    data = inputs_of(module)["data"]
    (wanted,) = module({"data": data}).values()
    other = [tvm.runtime.tensor(data), data.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)]
    for value in other:
        (result,) = module({"data": value}).values()
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "'data' is missing"),
        ({"data": np.zeros((1, 3, 16, 16), np.float32), "more": 1}, "unknown input 'more'"),
        ({"data": np.zeros((1, 3, 16, 17), np.float32)}, "(1, 3, 16, 17)"),
        ({"data": np.zeros((3, 16, 16), np.float32)}, "(1, 3, 16, 16)"),
        ({"data": np.zeros((1, 3, 16, 16), np.float64)}, "float64"),
        ({"data": "image.png"}, "str"),
    ],
)
def test_wrong_inputs(module: Module, inputs: dict, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        module(inputs)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def copied(built: Path, folder: Path) -> Path:
    copy = folder / "copy"
    subprocess.run(["cp", "-r", str(built), str(copy)], check=True)
    return copy


def test_damage_is_noticed(built: Path, tmp_path: Path) -> None:
    for i, name in enumerate(p.name for p in built.iterdir()):
        (tmp_path / str(i)).mkdir()
        copy = copied(built, tmp_path / str(i))
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 0xFF
        (copy / name).write_bytes(content)
        with pytest.raises(BadInput, match="damaged"):
            load(copy)
        (copy / name).unlink()
        with pytest.raises(BadInput, match=r"missing|not a built module"):
            load(copy)


def test_another_format_and_other_directories(built: Path, tmp_path: Path) -> None:
    copy = copied(built, tmp_path)
    data = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**data, "format": 99}))
    with pytest.raises(BadInput, match="format 99"):
        load(copy)
    (copy / "manifest.json").write_text(json.dumps({"kind": "something"}))
    with pytest.raises(BadInput, match="not the manifest"):
        load(copy)
    with pytest.raises(BadInput, match="not a built module"):
        load(tmp_path / "none")


def test_a_module_for_another_cpu(built: Path, tmp_path: Path) -> None:
    copy = copied(built, tmp_path)
    data = json.loads((copy / "manifest.json").read_text())
    data["cpu_features"].append("sve2" if "x86" in data["devices"][0]["key"]["family"] else "avx512f")
    write_manifest(copy, data)
    with pytest.raises(BadInput, match="which this machine lacks"):
        load(copy)


def test_features_by_the_names_of_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = required_features(tvm.target.Target({"kind": "llvm", "mcpu": "znver4"}))
    assert {"avx2", "avx512f", "fma"} <= set(wide)
    assert "avx512f" not in required_features(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    info = tmp_path / "cpuinfo"
    intel = "vendor_id\t: GenuineIntel\nflags\t\t: fpu sse4_1 sse4_2 avx avx2 fma bmi1 bmi2 f16c\n"
    assert missing_features(required_features(open_device("cpu", 1).target)) == []
    assert missing_features(wide, tmp_path / "none") == []
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    info.write_text(intel)
    assert "avx512f" in missing_features(wide, tmp_path)
    assert "sse4.2" not in missing_features(wide, tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert missing_features(("neon", "sve", "avx"), tmp_path) == ["avx"]  # qemu shows the processor below
    info.write_text("CPU implementer\t: 0x41\nFeatures\t: fp asimd\n")
    assert missing_features(("neon", "sve"), tmp_path) == ["sve"]


def test_features_of_a_board() -> None:
    facts = {"machine": "aarch64", "cpu_flags": ["fp", "asimd"]}
    assert missing_on_board(("neon", "sve"), facts) == ["sve"]
    assert missing_on_board(("avx2", "neon"), facts) == ["avx2"]
    emulated = {**facts, "cpu_flags": ["avx2"], "emulated": True}  # qemu shows the processor below
    assert missing_on_board(("avx2", "neon", "sve"), emulated) == ["avx2"]
    assert missing_on_board(("neon", "sve"), {**facts, "cpu_flags": []}) == []  # its system lists none


def test_a_profile_names_every_anchor(module: Module, model: Path) -> None:
    calls = module.profile(inputs_of(module), runs=3)
    nodes = [s.node for s in fuse(load_onnx(model)).anchors]
    assert [c.name for c in calls if c.operator is not None] == nodes
    assert all(c.seconds > 0 for c in calls)
    assert len(calls) > len(nodes)  # pooling has no anchor
    first = module(inputs_of(module))
    module.profile(inputs_of(module, 1), runs=1)
    for name, value in module(inputs_of(module)).items():
        np.testing.assert_array_equal(value, first[name])


def test_operator_errors_are_small_and_complete(module: Module, model: Path) -> None:
    graph = fuse(load_onnx(model))
    errors = operator_errors(module, graph, inputs_of(module))
    assert [e.operator.node for e in errors] == [s.node for s in graph.anchors]
    assert 0 < max(e.error for e in errors) < 1e-5


def test_operator_errors_of_parts_and_sequences(tmp_path: Path) -> None:
    """Anchors that write a part of a tensor, and dense layers whose rows are several axes."""
    net = Net()
    x = net.input(1, 16, 6, 6)
    joined = net.op("Concat", net.conv(x, (16, 32), 1), net.conv(x, (16, 20), 1), net.conv("x", (16, 3), 1), axis=1)
    y = net.op("MatMul", net.op("Reshape", joined, net.constant(np.array([5, 11, 36]))), net.weight(36, 9))
    device, graph = open_device("cpu", 1), net.graph(tmp_path, y)
    build(graph, device, tmp_path / "m")
    module = load(tmp_path / "m")
    errors = operator_errors(module, graph, inputs_of(module))
    assert len(errors) == len(graph.anchors) == 4
    assert 0 < max(e.error for e in errors) < 1e-5


def test_verification_names_output_and_operator(model: Path, tmp_path: Path) -> None:
    """A module with another network's weights in one layer is caught, and the layer is named."""
    graph = fuse(load_onnx(model))
    device = open_device("cpu", 1)
    wrong = graph.anchors[1]
    healthy = wrong.weight.copy()
    wrong.weight[0] *= -3
    build(graph, device, tmp_path / "m")
    wrong.weight[:] = healthy
    module = load(tmp_path / "m")
    with pytest.raises(VerificationFailed) as caught:
        verify(module, OnnxReference(model), graph=graph)
    assert repr(wrong.node) in str(caught.value)
    assert repr(next(iter(module.outputs))) in str(caught.value)
    with pytest.raises(VerificationFailed, match="tiny"):
        verify(module, OnnxReference(model))


def test_an_error_is_the_largest_of_all_inputs(module: Module, model: Path) -> None:
    """The reference is off for the first of them."""
    right, first = OnnxReference(model), inputs_of(module, 0)["data"]

    def off(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        share = 1e-3 if np.array_equal(inputs["data"], first) else 0
        return {name: value + share * np.abs(value).max() for name, value in right(inputs).items()}

    (error,) = verify(module, off, VerifyOptions(seeds=(0, 1), tolerance=1e-2)).values()
    assert error == pytest.approx(1e-3, rel=0.1)


def off_by(model: Path, share: float, where: Callable[[np.ndarray], bool] = lambda _: True) -> Reference:
    """A reference that is off by a share of the largest value, for some of the inputs."""
    right = OnnxReference(model)

    def off(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        error = share if where(inputs["data"]) else 0.0
        return {name: value + error * np.abs(value).max() for name, value in right(inputs).items()}

    return off


def test_it_is_verified_on_given_inputs_too(module: Module, model: Path) -> None:
    given = inputs_of(module, 77)
    off = off_by(model, 1e-3, lambda data: data is given["data"])
    assert max(verify(module, off).values()) < 1e-4
    with pytest.raises(VerificationFailed, match="the given inputs"):
        verify(module, off, VerifyOptions(given=given))


@pytest.mark.parametrize(("error", "own", "right"), [(6e-4, 1e-4, True), (1e-3, 1e-4, False), (0.02, 1.0, False)])
def test_what_the_reference_rounds_away_itself_is_allowed(
    module: Module, model: Path, error: float, own: float, right: bool
) -> None:
    (output,) = module.outputs

    def check() -> Mapping[str, float]:
        return verify(module, off_by(model, error), own_errors=lambda _: {output: own})

    with pytest.raises(VerificationFailed):
        verify(module, off_by(model, error))
    if right:
        assert check()[output] == pytest.approx(error, rel=0.1)
    else:
        with pytest.raises(VerificationFailed, match=f"allowed: {min(8 * own, 1e-2):.2g}"):
            check()


def test_whoever_locates_the_error_is_told_where_it_shows_and_what_is_allowed(module: Module, model: Path) -> None:
    asked: list[tuple[str, float]] = []

    def locate(output: str, inputs: Mapping[str, np.ndarray], allowed: float) -> str:
        np.testing.assert_array_equal(inputs["data"], inputs_of(module, 0)["data"])
        asked.append((output, allowed))
        return "node 'n' (Conv)"

    with pytest.raises(VerificationFailed, match=r"; the first that is off is node 'n' \(Conv\), on operands that are"):
        verify(module, off_by(model, 0.5), VerifyOptions(tolerance=1e-3), locate=locate)
    assert asked == [(next(iter(module.outputs)), 1e-3)]


def test_inputs_for_which_the_reference_has_no_digits_tell_nothing(module: Module, model: Path) -> None:
    """But for normal ones, and those that a user gives."""
    (output,) = module.outputs
    off = off_by(model, 0.5, lambda data: float(np.abs(data).max()) > 50)
    assert verify(module, off, own_errors=lambda _: {output: 0.3})[output] < 1e-4
    with pytest.raises(VerificationFailed):
        verify(module, off, own_errors=lambda _: {output: 1e-4})
    with pytest.raises(VerificationFailed):
        verify(module, off_by(model, 0.5), own_errors=lambda _: {output: 0.3})


def test_quantised_files_may_be_off_as_far_as_their_reference_is(module: Module, model: Path) -> None:
    """A value on a border decides what the layers behind it get. Normally distributed inputs tell nothing then."""
    (output,) = module.outputs
    quantised = _Quantised(module)
    loud = off_by(model, 0.5, lambda data: float(np.abs(data).max()) > 50)
    assert verify(quantised, loud, own_errors=lambda _: {output: 0.1})[output] == pytest.approx(0.5, rel=0.1)
    with pytest.raises(VerificationFailed, match=r"allowed: 0\.4,"):
        verify(quantised, loud, own_errors=lambda _: {output: 0.05})
    assert verify(quantised, loud, own_errors=lambda _: {output: math.inf})[output] < 1e-4
    every = off_by(model, 0.5)
    with pytest.raises(VerificationFailed, match="give inputs of the network's kind with --input"):
        verify(quantised, every, own_errors=lambda _: {output: math.inf})
    given = VerifyOptions(given=inputs_of(module, 0))
    with pytest.raises(VerificationFailed, match="the given inputs"):
        verify(quantised, every, given, own_errors=lambda _: {output: 0.05})


class _Quantised:
    """A module that says that its file quantises."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.manifest = replace(module.manifest, model={**module.manifest.model, "rounding": "int8"})

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return self._module(inputs)


def test_a_tolerance_that_is_asked_for_is_the_only_one(module: Module, model: Path) -> None:
    own = dict.fromkeys(module.outputs, 1.0)
    with pytest.raises(VerificationFailed):
        verify(module, off_by(model, 3e-4), VerifyOptions(tolerance=1e-4), own_errors=lambda _: own)


def test_an_output_of_another_type_is_wrong(module: Module, model: Path) -> None:
    right = OnnxReference(model)
    with pytest.raises(VerificationFailed, match="off by inf"):
        verify(module, lambda inputs: {name: value.astype(np.float64) for name, value in right(inputs).items()})


def test_what_a_reference_rounds_away_is_known(module: Module, model: Path) -> None:
    (error,) = OnnxReference(model).own_errors(inputs_of(module, 0)).values()
    assert 0 < error < 1e-5


def test_a_lucky_reference_says_how_far_a_rounding_moves_it(tmp_path: Path) -> None:
    """The difference of near numbers is exact here, but a rounding of the numbers is a ten-thousandth of it."""
    net = Net()
    net.input(64, name="x")
    path = net.save(tmp_path / "m.onnx", net.op("Sub", "x", net.constant(np.float32(1000))))
    near = {"x": (1000 + np.arange(64, dtype=np.float32) / 64)}
    (error,) = OnnxReference(path).own_errors(near).values()
    assert 2e-5 < error < 1e-3


def test_integer_inputs(tmp_path: Path) -> None:
    from onnx import TensorProto

    net = Net()
    net.input(2, dtype=TensorProto.INT64, name="rows")
    picked = net.op("Gather", net.weight(2, 5), "rows", axis=0)
    path = net.save(tmp_path / "m.onnx", net.op("Relu", picked))
    build(load_onnx(path), open_device("cpu", 1), tmp_path / "m")
    module = load(tmp_path / "m")
    assert verify(module, OnnxReference(path)) == {"relu_1": 0.0}


def test_a_network_of_shapes_only_needs_no_kernels(tmp_path: Path) -> None:
    net = Net()
    x = net.input(2, 3)
    path = net.save(tmp_path / "m.onnx", net.op("Identity", x))
    manifest = build(load_onnx(path), open_device("cpu", 1), tmp_path / "m")
    assert manifest.kernels is None
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    (result,) = load(tmp_path / "m")({"x": data}).values()
    np.testing.assert_array_equal(result, data)


def test_a_rebuilt_module_is_not_the_old_one(tmp_path: Path) -> None:
    """The loader keeps libraries by name: a new one must have another."""
    device = open_device("cpu", 1)
    results = []
    for scale in (2.0, 3.0):
        net = Net()
        path = net.save(tmp_path / "m.onnx", net.op("Mul", net.input(1, 4), net.scalar(scale)))
        build(load_onnx(path), device, tmp_path / "m")
        (result,) = load(tmp_path / "m")({"x": np.ones((1, 4), np.float32)}).values()
        results.append(result[0, 0])
    assert results == [2.0, 3.0]


def test_another_thread_may_call(module: Module) -> None:
    inputs, results = inputs_of(module), []
    wanted = module(inputs)
    caller = threading.Thread(target=lambda: results.append(module(inputs)))
    caller.start()
    caller.join()
    for name, value in wanted.items():
        np.testing.assert_array_equal(results[0][name], value)


SCRIPT = """
import os, sys, numpy as np
from tuner.module import load
module = load(sys.argv[1])
before = os.sched_getaffinity(0)
for _ in range(3):
    module({name: np.zeros(shape, dtype) for name, (shape, dtype) in module.inputs.items()})
assert os.sched_getaffinity(0) == before
masks = [tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir("/proc/self/task") if int(t) != os.getpid()]
print(module.threads, sorted(m for m in masks if len(m) == 1))
"""


@pytest.mark.sampled(3)
@pytest.mark.skipif(len(usable_cpus()) < 2, reason="needs two cores")
@pytest.mark.parametrize("wanted", [None, "1", "2"])
def test_workers_are_pinned_and_the_caller_is_not(model: Path, tmp_path: Path, wanted: str | None) -> None:
    build(load_onnx(model), open_device("cpu", 2), tmp_path / "m")
    environment = {k: v for k, v in os.environ.items() if k != "TVM_NUM_THREADS"}
    if wanted is not None:
        environment["TVM_NUM_THREADS"] = wanted
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "m")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    threads, _, pinned = done.stdout.strip().partition(" ")
    assert threads == (wanted or "2")
    assert pinned == ("[]" if wanted == "1" else f"[({usable_cpus()[1]},)]")


def test_threads_that_are_no_number(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    with pytest.raises(BadInput, match="many"):
        load(built)


@pytest.mark.parametrize("kept", [True, False])
def test_with_its_own_pool_or_tvms_it_computes_the_same(
    model: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """TVM's pool is used where the module has none that runs here: made for another system, say."""
    directory = tmp_path / "shared"
    shutil.copytree(built, directory)
    (pool,) = directory.glob("parallel-*.so")
    if not kept:
        pool.write_bytes(b"\x7fELF of another machine")
        pool.rename(directory / "parallel-strange.so")
        manifest = directory / "manifest.json"
        write_manifest(manifest.parent, json.loads(manifest.read_text().replace(pool.name, "parallel-strange.so")))
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    module = load(directory, check_files=False)
    inputs = inputs_of(module)
    for name, value in OnnxReference(model)(inputs).items():
        np.testing.assert_allclose(module(inputs)[name], value, rtol=1e-4, atol=1e-5)
    assert module.threads == 2


def test_a_quantised_reference_says_how_far_a_rounding_moves_it(tmp_path: Path) -> None:
    """The input lies on the border of two steps, which a rounding decides: here a step is a hundredth of the result."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    weights = [
        helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("zero", TensorProto.UINT8, [], [0]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "steps", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = tmp_path / "steps.onnx"
    path.write_bytes(model.SerializeToString())
    reference = OnnxReference(path)
    on_border = {"x": np.full(64, 99.5, np.float32)}
    between = {"x": np.full(64, 99.25, np.float32)}
    assert 0.005 < reference.own_errors(on_border)["y"] < 0.02
    assert reference.own_errors(between)["y"] == 0


def test_threads_of_others_may_end_while_a_pool_starts() -> None:
    library = pool_library()
    assert library is not None
    pool = Pool(library)
    done = threading.Event()

    def short_lives() -> None:
        while not done.is_set():
            threads = [threading.Thread(target=lambda: None) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    others = threading.Thread(target=short_lives)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    others.start()
    try:
        pool.threads(2)
        for _ in range(2000):
            PoolThreads(2, usable_cpus(), True, pool).start()
    finally:
        done.set()
        sys.setswitchinterval(interval)
        others.join()
