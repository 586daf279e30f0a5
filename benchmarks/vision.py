"""This benchmark compares our vision operators with kernels of TVM, NumPy, onnxruntime and torchvision.

    python benchmarks/vision.py [--device opencl:0] [--trials 24] [--rounds 30] [--db FILE] [--no-topi] [--json]

The operators are prefix sums and stable argsorts of 1e5 and 1e6 float32 values, and the suppression of 8000 boxes. Ours
are tuned first. Then all contenders take turns in one process. TVM's kernels ("topi") and a serial kernel run on the
same device, the others on the cores of this machine. "topi" is topi.gpu's sort and its exclusive scan, as the inclusive
one leaves a stage on the host. "serial" is one work-item, like the kernels that Wang et al., "A Unified Optimization
Approach for CNN Model Inference on Integrated GPUs", table 4, call "before". onnxruntime and torchvision sort the
scores too. A peer that is not installed is left out. --no-topi leaves TVM's kernels out: its scan ends the process with
some drivers. Our results are compared with the reference. Ratios are the peer's seconds over ours: above 1 ours is
faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))  # TVM's default is half as many

import numpy as np
import tvm
from serial_vision import PREFIX, serial_config
from tvm import te, tirx, topi

from templates.gpu.limits import gpu_limits_of, gpu_target
from templates.lowering import build
from templates.operator import operator_named
from templates.template import template_named
from tuner.devices import Device, open_device
from tuner.measure import LocalRunner, MeasureOptions
from tuner.session import Budget, Task, TuneOptions, tune
from tuning_db.record import Workload
from tuning_db.store import Store, open_db
from vision_ops.argsort import Argsort
from vision_ops.nms import Nms
from vision_ops.scan import Scan

BOXES = 8000
WORKLOADS = {
    "scan 1e5": Scan(1, 100_000).workload(),
    "scan 1e6": Scan(1, 1_000_000).workload(),
    "argsort 1e5": Argsort(1, 100_000, 100_000).workload(),
    "argsort 1e6": Argsort(1, 1_000_000, 1_000_000).workload(),
    f"nms {BOXES}": Nms(1, 1, BOXES, BOXES, BOXES, 0.5).workload(),
}
Contender = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A row of the result, in which `seconds` are medians and `error` is our error against the reference."""

    device: str
    model: str
    name: str
    config: str
    seconds: Mapping[str, float]
    error: float

    def ratio(self, peer: str) -> float:
        return self.seconds[peer] / self.seconds["ours"]


def _tuned(workload: Workload, name: str, device: Device, store: Store, trials: int) -> Any:
    with LocalRunner(device, MeasureOptions()) as runner:
        tune(
            [Task(workload, 1, name)],
            device,
            store,
            runner,
            TuneOptions(budget=Budget(trials=trials), only=[f"vision.{workload.op}"]),
        )
    best = store.best(workload, device.key)
    assert best is not None
    return best.config


def _called(func: tirx.PrimFunc, device: Device, inputs: list[Any], outputs: list[Any]) -> Contender:
    entry = build(func.with_attr("global_symbol", "main"), device.target)["main"]
    place = device.tvm_device()

    def run() -> None:
        entry(*inputs, *outputs)
        place.sync()

    return run


def _topi(workload: Workload, device: Device, inputs: list[Any], outputs: list[Any]) -> Contender | None:
    """Return TVM's kernel, or None where TVM has no kernel for the operator on the device."""
    if device.is_host or workload.op == "nms":
        return None
    data = te.placeholder(tuple(inputs[0].shape)[:2], name="data")
    # TVM's scan writes outside its buffers where the device allows larger groups than GPUs do.
    limits = gpu_limits_of(device.target)
    usual = replace(limits, max_threads=min(1024, limits.max_threads))
    device = replace(device, target=gpu_target(usual, device.target.host))
    with device.target:
        if workload.op == "scan":
            func = te.create_prim_func([data, topi.gpu.scan.exclusive_scan(data, axis=1)])
            flat = [tvm.runtime.tensor(t.numpy()[..., 0], device.tvm_device()) for t in (inputs[0], outputs[0])]
            return _called(func, device, flat[:1], flat[1:])
        func = te.create_prim_func([data, topi.gpu.argsort(data, axis=1, dtype="int32")])
    return _called(func, device, inputs, outputs)


def _on_the_host(workload: Workload, arrays: tuple[np.ndarray, ...]) -> dict[str, Contender]:
    if workload.op == "scan":
        return {"numpy": lambda: np.cumsum(arrays[0], axis=1)}
    if workload.op == "argsort":
        return {"numpy": lambda: np.argsort(arrays[0], axis=1, kind="stable")}
    nms = Nms.of(workload)
    peers = {"onnxruntime": _onnxruntime_nms(nms, arrays)}
    if (theirs := _torchvision_nms(nms, arrays)) is not None:
        peers["torchvision"] = theirs
    return peers


def _torchvision_nms(nms: Nms, arrays: tuple[np.ndarray, ...]) -> Contender | None:
    try:
        import torch
        from torchvision.ops import nms as suppress
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        print(f"torchvision is skipped: {error}", file=sys.stderr)
        return None
    boxes, scores = torch.from_numpy(arrays[0][0]), torch.from_numpy(arrays[1][0])
    return lambda: suppress(boxes, scores, nms.iou)


def _onnxruntime_nms(nms: Nms, arrays: tuple[np.ndarray, ...]) -> Contender:
    from onnx import TensorProto, helper
    from onnxruntime import InferenceSession, SessionOptions

    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["out"])
    graph = helper.make_graph(
        [node],
        "nms",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, nms.boxes, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, nms.boxes]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.INT64, [None, 3])],
        [
            helper.make_tensor("most", TensorProto.INT64, [1], [nms.keep]),
            helper.make_tensor("iou", TensorProto.FLOAT, [1], [nms.iou]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"boxes": arrays[0], "scores": arrays[1][None]}
    return lambda: session.run(None, feeds)


def _alternated(contenders: Mapping[str, Contender], rounds: int) -> dict[str, float]:
    """Time the contenders in turns and return medians of seconds. In a round each runs once before it is timed."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        names = list(contenders)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            contenders[name]()
            start = time.perf_counter()
            contenders[name]()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def measure(name: str, device: Device, store: Store, options: argparse.Namespace) -> Row:
    workload, place = WORKLOADS[name], device.tvm_device()
    operator = operator_named(workload.op)
    config = _tuned(workload, name, device, store, options.trials)
    arrays = operator.random_inputs(workload, np.random.default_rng(0))
    inputs = [tvm.runtime.tensor(array, place) for array in arrays]

    def empty() -> list[Any]:
        return [tvm.runtime.tensor(np.zeros(o.shape, o.dtype), place) for o in operator.outputs(workload)]

    ours = empty()
    func = template_named(config.template).prim_func(workload, device.target, config)
    contenders = {"ours": _called(func, device, inputs, ours)}
    if options.topi and (theirs := _topi(workload, device, inputs, empty())) is not None:
        contenders["topi"] = theirs
    if workload.op == "nms":
        serial = template_named(f"{PREFIX}nms").prim_func(workload, device.target, serial_config(workload))
        contenders["serial"] = _called(serial, device, inputs, empty())
    contenders |= _on_the_host(workload, arrays)
    seconds = _alternated(contenders, options.rounds)
    expected = operator.reference(workload, arrays)
    error = operator.error(workload, [out.numpy() for out in ours], expected)
    return Row(device.name, device.key.model, name, config.key, seconds, error)


def _summary(rows: list[Row]) -> dict[str, float]:
    """Return how many times faster ours is, by operator, peer and size ("argsort_vs_topi_1e6")."""
    found = {}
    for row in rows:
        op, size = row.name.split()
        found |= {f"{op}_vs_{peer}_{size}": row.ratio(peer) for peer in row.seconds if peer != "ours"}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--db", help="keeps what was tuned")
    parser.add_argument("--no-topi", dest="topi", action="store_false", help="leave TVM's kernels out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device, rows = open_device(options.device), []
    with tempfile.TemporaryDirectory() as folder, open_db(options.db or str(Path(folder) / "t.db")) as store:
        for name in WORKLOADS:
            row = measure(name, device, store, options)
            rows.append(row)
            others = "  ".join(f"{p} {row.ratio(p):6.2f}x" for p in row.seconds if p != "ours")
            print(
                f"{row.device} {name:12s} {row.seconds['ours'] * 1e3:8.3f} ms  {others}  error {row.error:.0e}",
                file=sys.stderr,
            )
    if options.json:
        machine = {"device": device.key.as_dict(), "platform": platform.platform(), "trials": options.trials}
        print(json.dumps({"summary": _summary(rows), "rows": [asdict(row) for row in rows], "machine": machine}))


if __name__ == "__main__":
    main()
