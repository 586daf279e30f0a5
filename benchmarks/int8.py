"""This benchmark compares quantised networks on the CPU with onnxruntime's int8, and with our own float32.

    python benchmarks/int8.py [--models resnet18,...] [--threads 1] [--minutes 3] [--exports FOLDER]
        [--folder DIR] [--json FILE]

Networks come from `tune zoo` (SSD without its selection of boxes), mobilenetv2_100 from --exports (see
benchmarks/real_exports.py), 320n (YOLOv8n) from the package nudenet. onnxruntime's quantizer writes the files: QDQ,
uint8 activations, int8 weights with a scale per channel, calibrated on random images. Each is tuned for --minutes
(0: not tuned), built, and compared by `tune bench --against ort`, in which both alternate. Ratios are our latency over
onnxruntime's on the same file: below 1 ours is faster.
"times" is how much faster it is than our float32 module of the same network, which has the configs that come with
edgetune. "integer" is the share of multiply-adds that are of integers. In the JSON file, "convolutions_gops" is the
mean rate of the convolutions alone, in GOP/s.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx
from models_cpu import machine
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from real_networks import shipped, tune

from tuner.devices import open_device
from tuner.graph import FusedGraph, fuse, load_onnx, multiplies_integers, tasks_of
from tuning_db.store import open_db

ZOO = ("resnet18", "resnet50_v1", "squeezenet1.0", "mobilenet1.0", "ssd_300_mobilenet1.0")
EXPORTED, SHIPPED = ("mobilenetv2_100",), ("320n",)
_IMAGES = 4  # to calibrate on


class Refused(Exception):
    """Says why a network has no row."""


class _Random(CalibrationDataReader):
    """Yields random images of a model's input."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        draw = [np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in range(_IMAGES)]
        self._left = iter([{name: image} for image in draw])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def network(name: str, folder: Path, exports: Path | None) -> tuple[Path, tuple[int, ...]]:
    """Return the file of a network, and the shape of its input if the file leaves it open."""
    if name in EXPORTED:
        if exports is None:
            raise SystemExit(f"{name}: name the folder of benchmarks/real_exports.py with --exports")
        return exports / f"{name}.onnx", ()
    if name in SHIPPED:
        (file,) = shipped(folder, {name})
        return file.path, file.shape
    path = folder / f"{name}.onnx"
    if not path.exists():
        tune("zoo", name, "-o", path)
    return without_selection(path), ()


def without_selection(path: Path) -> Path:
    """Return the file of a detector that ends with its boxes and scores. The zoo's weights are random: which boxes are
    selected depends on the last bit of scores that are nearly equal, and so does how many they are."""
    model = onnx.load(path)
    selections = [node for node in model.graph.node if node.op_type == "NonMaxSuppression"]
    if not selections:
        return path
    result = path.with_name(f"{path.stem}.heads.onnx")
    (given,) = [value.name for value in model.graph.input]
    onnx.utils.extract_model(path, result, [given], list(selections[0].input[:2]))
    return result


def quantized(path: Path, shape: tuple[int, ...], folder: Path) -> Path:
    """Quantise a network with onnxruntime's quantizer, once."""
    result = folder / f"{path.stem}.int8.onnx"
    if result.exists():
        return result
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    (given,) = [value for value in model.graph.input if value.name not in weights]
    sizes = shape or tuple(d.dim_value or 1 for d in given.type.tensor_type.shape.dim)  # at most the batch is free
    for axis, size in zip(given.type.tensor_type.shape.dim, sizes, strict=True):
        axis.dim_value = size
    fixed, ready = folder / f"{path.stem}.fixed.onnx", folder / f"{path.stem}.ready.onnx"
    onnx.save(model, fixed)
    quant_pre_process(str(fixed), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready),
        str(result),
        _Random(given.name, sizes),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return result


def share_of_integers(path: Path, threads: int) -> float:
    """Return the share of a network's operations in anchors that multiply integers on this machine."""
    target = open_device("cpu", threads).target
    graph: FusedGraph = fuse(load_onnx(path), integers=multiplies_integers([target]))
    work = [((task.flop or 0.0) * task.occurrences, task.workload.dtype) for task in tasks_of(graph)]
    return sum(flop for flop, dtype in work if dtype == "uint8") / sum(flop for flop, _ in work)


def rate(path: Path, folder: Path, threads: int) -> float | None:
    """Return the geometric mean of the rates of a network's convolutions in GOP/s, as they were measured while it was
    tuned, or None if they were not."""
    device, rates = open_device("cpu", threads), []
    graph = fuse(load_onnx(path), integers=multiplies_integers([device.target]))
    with open_db(folder / f"tuning-{threads}t.db") as store:
        for task in tasks_of(graph):
            best = store.best(task.workload, device.key) if task.workload.op == "conv2d" else None
            if best is not None and best.seconds is not None:
                rates.append((task.flop or 0.0) / best.seconds / 1e9)
    return geometric_mean(rates) if rates else None


def compared(path: Path, folder: Path, minutes: float, threads: int, *options: str) -> dict[str, Any]:
    """Tune, build and compare one file, and return what `tune bench` says, or what went wrong."""
    database = folder / f"tuning-{threads}t.db"
    open_db(database).close()  # an empty one says that nothing has been tuned
    common = ("--device", "cpu", "--threads", threads, "--db", database)
    module, said = folder / f"{path.stem}-{threads}t", ""
    if minutes:
        _, said = tune("model", path, *options, *common, "--minutes", minutes)
    if not said:
        _, said = tune("build", path, *options, *common, "-o", module)
    if not said:
        found, said = tune("bench", module, "--model", path, "--against", "ort", "--threads", threads, "--rounds", 10)
    if said:
        raise Refused(f"{path.stem}: {said}")
    return found


def measure(name: str, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Compare one network, and return its row of the table. Raises Refused if it is not built or compared."""
    path, shape = network(name, folder, asked.exports)
    file = quantized(path, shape, folder)
    found = compared(file, folder, asked.minutes, asked.threads)
    plain = compared(folder / f"{path.stem}.fixed.onnx", folder, 0.0, asked.threads)
    ours, peer = found["ours"]["median_seconds"] * 1e3, found["peers"][0]
    return {
        "network": name,
        "threads": asked.threads,
        "ours_ms": ours,
        "ort_ms": peer["median_seconds"] * 1e3,
        "ratio": peer["latency_ratio"],
        "error": peer["relative_error"],
        "float32_ms": plain["ours"]["median_seconds"] * 1e3,
        "times": plain["ours"]["median_seconds"] * 1e3 / ours,
        "integer": share_of_integers(file, asked.threads),
        "convolutions_gops": rate(file, folder, asked.threads),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join((*ZOO, *SHIPPED, *EXPORTED)))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=3.0, help="of tuning, for each (0: untuned)")
    parser.add_argument("--exports", type=Path, help="the folder that benchmarks/real_exports.py has written")
    parser.add_argument("--folder", type=Path, help="keep models, modules and the database here")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    here = machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        print("| network | ours, ms | onnxruntime, ms | ratio | our float32, ms | times | integer | error |")
        print("|---|---|---|---|---|---|---|---|")
        for name in asked.models.split(","):
            try:
                row = measure(name, folder, asked)
            except Refused as error:
                print(f"| {name} | {error} |", flush=True)
                continue
            rows.append(row)
            print(
                f"| {name} | {row['ours_ms']:.2f} | {row['ort_ms']:.2f} | {row['ratio']:.2f} | {row['float32_ms']:.2f} "
                f"| {row['times']:.2f} | {row['integer']:.0%} | {row['error']:.1e} |",
                flush=True,
            )
    summary = {f"vs_ort_int8_{row['network']}_{row['threads']}t": row["ratio"] for row in rows}
    if asked.json is not None:
        asked.json.write_text(json.dumps({"summary": summary, "rows": rows, "machine": here}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
