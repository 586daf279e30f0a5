"""This benchmark compares single operators with onnxruntime's, built as networks of one node.

    python benchmarks/real_operators.py [--only NAME,...] [--minutes 0.5] [--folder DIR] [--json FILE]

The sizes are those of layers in networks of today. Operators with a template are tuned for --minutes each; others have
the default schedule. A ratio is our latency over onnxruntime's on one thread, without copies of operands and results,
and the two alternate in one run: below 1 ours is faster. If torch is installed (pip install torch==2.13.0), it takes
part, eager, with oneDNN in it for products and convolutions. The rate counts 2 operations per multiply-add in GFLOP/s
for products and convolutions; for all else it counts the bytes that are read and written at least, in GB/s. A row
"copy" reads and writes 16 MB: that is the memory's rate.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from models_cpu import machine
from onnx import TensorProto, helper, numpy_helper
from real_networks import tune

import edgetune
from tuning_db.store import open_db

Shape = Sequence[int]
_OPSET = 18
_ROUNDS, _ROUND_SECONDS = 5, 0.2


@dataclass
class Case:
    """Describes one operator, with the `inputs` that change from call to call, and those that are constant."""

    kind: str
    inputs: Sequence[Shape]
    constants: Sequence[Shape | np.ndarray] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    flop: Callable[[Shape], float] | None = None  # of the result's shape

    def arrays(self) -> list[np.ndarray]:
        """Return the constants' values."""
        rng = np.random.default_rng(0)
        return [
            value if isinstance(value, np.ndarray) else rng.standard_normal(value).astype(np.float32)
            for value in self.constants
        ]

    def save(self, path: Path) -> Shape:
        """Write the model, and return the shape of its result."""
        names = [f"x{i}" for i in range(len(self.inputs))]
        given = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s))
            for n, s in zip(names, self.inputs, strict=True)
        ]
        weights = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(self.arrays())]
        node = helper.make_node(self.kind, [*names, *(w.name for w in weights)], ["y"], **self.attributes)
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        model = helper.make_model(
            helper.make_graph([node], "operator", given, [result], weights),
            opset_imports=[helper.make_opsetid("", 20 if self.kind == "Gelu" else _OPSET)],
        )
        model = onnx.shape_inference.infer_shapes(model)
        onnx.save(model, path)
        return [int(d.dim_value) for d in model.graph.output[0].type.tensor_type.shape.dim]

    def work(self, result: Shape) -> tuple[float, str]:
        """Return the operations in Gflop or the bytes in GB, and the unit of their rate."""
        if self.flop is not None:
            return self.flop(result) / 1e9, "GFLOP/s"
        return 4 * (sum(prod(s) for s in self.inputs) + prod(result)) / 1e9, "GB/s"


def product(batch: int, rows: int, depth: int, columns: int) -> Case:
    shapes = [(batch, rows, depth), (batch, depth, columns)]
    return Case("MatMul", shapes, flop=lambda _: 2.0 * batch * rows * depth * columns)


def convolution(shape: Shape, weight: Shape, **attributes: Any) -> Case:
    return Case("Conv", [shape], [weight], attributes, lambda out: 2.0 * prod(out) * prod(weight[1:]))


def transposed(shape: Shape, weight: Shape, **attributes: Any) -> Case:
    return Case("ConvTranspose", [shape], [weight], attributes, lambda _: 2.0 * prod(shape) * prod(weight[1:]))


IMAGE = (1, 64, 80, 80)
CASES: dict[str, Case] = {
    "copy": Case("Neg", [(4, 1 << 20)]),
    "product 512": product(1, 512, 512, 512),
    "queries by keys of ViT": product(3, 197, 64, 197),
    "weights by values of ViT": product(3, 197, 197, 64),
    "queries by keys of MobileViT": product(16, 256, 16, 256),
    "softmax of ViT": Case("Softmax", [(3, 197, 197)], attributes={"axis": -1}),
    "softmax of MobileViT": Case("Softmax", [(16, 256, 256)], attributes={"axis": -1}),
    "softmax of channels": Case("Softmax", [(1, 16, 4, 2100)], attributes={"axis": 1}),
    "layer norm of ViT": Case("LayerNormalization", [(1, 197, 192)], [(192,), (192,)]),
    "layer norm of ConvNeXt": Case("LayerNormalization", [(1, 56, 56, 40)], [(40,), (40,)]),
    "instance norm": Case("InstanceNormalization", [(1, 32, 80, 80)], [(32,), (32,)]),
    "GELU": Case("Gelu", [(1, 197, 768)]),
    "sigmoid": Case("Sigmoid", [IMAGE]),
    "tanh": Case("Tanh", [IMAGE]),
    "exp": Case("Exp", [IMAGE]),
    "erf": Case("Erf", [IMAGE]),
    "ELU": Case("Elu", [IMAGE]),
    "softplus": Case("Softplus", [IMAGE]),
    "transposed 2x2/2": transposed((1, 64, 40, 40), (64, 32, 2, 2), strides=[2, 2]),
    "transposed 4x4/2": transposed((1, 64, 40, 40), (64, 32, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed 3x3/2": transposed(
        (1, 64, 40, 40), (64, 32, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
    ),
    "along time": convolution((1, 64, 400), (64, 64, 3), pads=[1, 1]),
    "depthwise along time": convolution((1, 64, 400), (64, 1, 9), pads=[4, 4], group=64),
    "depthwise 7x7": convolution((1, 40, 56, 56), (40, 1, 7, 7), pads=[3] * 4, group=40),
    "depthwise 31x31": convolution((1, 64, 28, 28), (64, 1, 31, 31), pads=[15] * 4, group=64),
    "to 9 channels": convolution((1, 32, 120, 160), (9, 32, 3, 3), pads=[1] * 4),
    "dilated 3x3": convolution((1, 64, 33, 33), (64, 64, 3, 3), pads=[6] * 4, dilations=[6, 6]),
    "global mean": Case("GlobalAveragePool", [(1, 960, 14, 14)]),
    "transpose": Case("Transpose", [IMAGE], attributes={"perm": [0, 2, 3, 1]}),
    "pixel shuffle": Case("DepthToSpace", [(1, 36, 120, 160)], attributes={"blocksize": 3, "mode": "CRD"}),
    "mean of rows": Case("ReduceMean", [(1, 197, 192)], [np.array([-1])]),
}


def medians(module: Path, model: Path, case: Case) -> list[float]:
    """Return the median seconds of our call, of onnxruntime's and of torch's, if it is here, without copies of operands
    and results. All compute on one thread, and take turns in rounds of a fifth of a second."""
    ours = edgetune.load(module, pin=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rng, binding = np.random.default_rng(1), session.io_binding()
    given = {f"x{i}": aligned(rng.standard_normal(shape).astype(np.float32)) for i, shape in enumerate(case.inputs)}
    for name, array in given.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    result = onnxruntime.OrtValue.ortvalue_from_numpy(next(iter(ours(given).values())))
    binding.bind_ortvalue_output("y", result)
    calls = [lambda: ours.in_place(given), lambda: session.run_with_iobinding(binding)]
    if find_spec("torch"):
        from torch_operators import torch_call

        calls.append(torch_call(case.kind, list(given.values()), case.arrays(), case.attributes))
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, seconds in zip(calls, taken, strict=True):
            call()
            end = time.perf_counter() + _ROUND_SECONDS
            while (began := time.perf_counter()) < end:
                call()
                seconds.append(time.perf_counter() - began)
    return list(map(median, taken))


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a cache line, so that it is read where it is."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def row_of(name: str, case: Case, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Build, tune and compare an operator, and return its row of the table."""
    stem, database = name.replace(" ", "-").replace("/", "-"), folder / "tuning.db"
    model, module = folder / f"{stem}.onnx", folder / stem
    work, unit = case.work(case.save(model))
    row: dict[str, Any] = {"operator": name, "unit": unit}
    where = ["--threads", 1, "--db", database]
    for title in ("untuned", *(("tuned",) if asked.minutes else ())):
        if title == "tuned":
            tune("model", model, *where, "--minutes", asked.minutes)
        built, said = tune("build", model, *where, "-o", module)
        if not built:
            return {**row, "said": said}
        seconds, theirs, *torch = medians(module, model, case)
        row.update({title: seconds / theirs, f"{title}_us": seconds * 1e6, "rate": work / seconds})
        row.update({f"{title}_vs_torch": seconds / other for other in torch})
    return row


def line(row: dict[str, Any]) -> str:
    """Format a row of the table in Markdown."""
    titles = ("untuned", "tuned", "untuned_vs_torch", "tuned_vs_torch")
    ratios = [f"{row[title]:.2f}" if title in row else "" for title in titles]
    times = [f"{row[title]:.0f}" if title in row else "" for title in ("untuned_us", "tuned_us")]
    rate = f"{row['rate']:.1f} {row['unit']}" if "rate" in row else row.get("said", "")
    return f"| {' | '.join([row['operator'], *times, *ratios, rate])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--minutes", type=float, default=0.0, help="of tuning, for each")
    parser.add_argument("--folder", type=Path, help="keep models, modules and the database here")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    only = {name for name in asked.only.split(",") if name}
    rows = []
    print("| operator | untuned us | tuned us | untuned / ort | tuned / ort | untuned / torch | tuned / torch | rate |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        open_db(folder / "tuning.db").close()  # an empty one says that nothing has been tuned
        for name, case in CASES.items():
            if not only or name in only:
                rows.append(row_of(name, case, folder, asked))
                print(line(rows[-1]), flush=True)
    if asked.json:
        ratios = [row.get("tuned", row.get("untuned")) for row in rows]
        summary = {"vs_ort_geomean_1t": geometric_mean(r for r in ratios if r)}
        asked.json.write_text(json.dumps({"summary": summary, "rows": rows, "machine": machine()}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
