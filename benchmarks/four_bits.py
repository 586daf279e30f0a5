"""This benchmark compares products by matrices of 4-bit numbers with onnxruntime's MatMulNBits, and with float32.

    chrt -f 1 taskset -c 1 python benchmarks/four_bits.py [--sizes 1x2048x2048,...] [--block 32] [--rounds 40]
        [--json FILE]

Each size is rows x inputs x outputs. Two networks of one product are written: MatMulNBits with scales for each --block
inputs, and MatMul by the same matrix in float32. Ours are built untuned for one thread. All are called from Python with
NumPy arrays, one after the other in every round, and medians are compared. onnxruntime computes MatMulNBits as the file
says: in float32, or by rounding the data to 8 bits (accuracy_level 4), which is faster and off by more. "error" is the
largest error relative to the largest result in float64. "MB" is what our module keeps besides its kernels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from models_cpu import machine
from onnx import TensorProto, helper, numpy_helper

from templates.four_bits import MIDDLE
from tuner.devices import open_device
from tuner.graph import load_onnx
from tuner.module import Module, build, load

_CALLS = 10  # in a row, of which the mean counts
_LEVELS = {"float32": 0, "8 bits": 4}  # accuracy levels of MatMulNBits
_LOW, _HIGH = 0, 16


def _saved(path: Path, node: onnx.NodeProto, shapes: tuple[Any, Any], constants: dict[str, np.ndarray]) -> Path:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes, strict=True)
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], weights)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    onnx.save(model, path)
    return path


class Case:
    """Holds the files of one size, their input and their result in float64."""

    def __init__(self, size: tuple[int, int, int], block: int, folder: Path) -> None:
        rows, inputs, outputs = size
        rng = np.random.default_rng(0)
        numbers = rng.integers(_LOW, _HIGH, (outputs, inputs), np.uint8)
        scale = (rng.uniform(0.5, 1.5, (outputs, inputs // block)) / (4 * np.sqrt(inputs))).astype(np.float32)
        matrix = (numbers.astype(np.float32) - MIDDLE) * np.repeat(scale, block, axis=1)
        pairs = numbers.reshape(outputs, inputs // block, block // 2, 2)
        packed = (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8)
        shapes = (rows, inputs), (rows, outputs)
        self.files = {}
        for name, level in _LEVELS.items():
            node = helper.make_node(
                "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft",
                K=inputs, N=outputs, bits=4, block_size=block, accuracy_level=level,
            )  # fmt: skip
            self.files[name] = _saved(folder / f"{level}.onnx", node, shapes, {"b": packed, "s": scale.reshape(-1)})
        whole = {"b": np.ascontiguousarray(matrix.T)}
        self.floats = _saved(folder / "float32.onnx", helper.make_node("MatMul", ["x", "b"], ["y"]), shapes, whole)
        self.data = rng.standard_normal(shapes[0]).astype(np.float32)
        self.wanted = self.data.astype(np.float64) @ matrix.T.astype(np.float64)

    def error(self, result: np.ndarray) -> float:
        """Return the largest error relative to the largest result."""
        return float(np.abs(result - self.wanted).max() / np.abs(self.wanted).max())


def session(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Open a file in onnxruntime, for one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    opened = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda data: np.asarray(opened.run(None, {"x": data})[0])


def _called(module: Module) -> Callable[[np.ndarray], np.ndarray]:
    return lambda data: module({"x": data})["y"]


def measured(case: Case, folder: Path, rounds: int) -> dict[str, Any]:
    """Return seconds, errors and our modules' bytes, by who computes what."""
    calls, held = {}, {}
    for name, path in {"four": case.files["float32"], "float32": case.floats}.items():
        manifest = build(load_onnx(path), open_device("cpu", 1), folder / name)
        calls[f"ours_{name}"] = _called(load(folder / name))
        held[name] = manifest.sizes.weights
    calls |= {f"ort_{name}": session(path) for name, path in case.files.items()}
    calls["ort_matmul"] = session(case.floats)
    errors = {name: case.error(call(case.data)) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(_CALLS):
                call(case.data)
            taken[name].append((time.perf_counter() - started) / _CALLS)
    return {"seconds": {name: median(times) for name, times in taken.items()}, "errors": errors, "bytes": held}


def _size(text: str) -> tuple[int, int, int]:
    rows, inputs, outputs = map(int, text.split("x"))
    return rows, inputs, outputs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1x2048x2048,1x4096x4096,8x2048x2048")
    parser.add_argument("--block", type=int, default=32, help="inputs that share a scale")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    rows, summary = [], {}
    print("| size | ours, us | our float32, us | ort, us | ort in 8 bits, us | ort float32, us | error | ort's | MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for text in asked.sizes.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            case = Case(_size(text), asked.block, Path(temporary))
            found = measured(case, Path(temporary), asked.rounds)
        names = ("ours_four", "ours_float32", "ort_float32", "ort_8 bits", "ort_matmul")
        times, errors = [found["seconds"][name] for name in names], found["errors"]
        ours, theirs = errors["ours_four"], [errors[f"ort_{name}"] for name in _LEVELS]
        print(
            f"| {text} | {' | '.join(f'{t * 1e6:.0f}' for t in times)} | {ours:.0e} "
            f"| {' and '.join(f'{e:.0e}' for e in theirs)} "
            f"| {found['bytes']['four'] / 1e6:.2f} of {found['bytes']['float32'] / 1e6:.2f} |",
            flush=True,
        )
        rows.append({"size": text, **found})
        summary |= {f"vs_float32_{text}": times[0] / times[1], f"vs_ort_{text}": times[0] / times[2]}
    if asked.json is not None:
        asked.json.write_text(json.dumps({"summary": summary, "rows": rows, "machine": machine()}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
