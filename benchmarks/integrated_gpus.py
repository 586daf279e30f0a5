"""This benchmark repeats the tables of Wang et al. on the devices at hand, with the six networks of their paper.

    python benchmarks/integrated_gpus.py [--device cpu ...] [--models ssd_512_mobilenet1.0 ...] [--minutes 5]
                                         [--folder DIR] [--rounds 8] [--json]

The paper is Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs". Each network of
the zoo is tuned for --minutes and built. Its module takes turns in one run with others, each in its own process:

ort       onnxruntime on all cores of the CPU, instead of the vendors' libraries (tables 1 to 3)
untuned   the same network built without a database (table 5)
before    detectors only: one work-item for each class does sorting, suppression and compaction (table 4; see
          benchmarks/serial_vision.py)
fallback  detectors only: the GPU leaves suppression to the CPU (section 3.1.2: 1010.23 against 1015.14 ms)

Detections are compared with onnxruntime's: the boxes and labels must be the same, and the scores within 1e-4. Ratios
are latencies over ours: above 1 ours is faster. With --folder the files are kept, and a second run goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from models_cpu import tune
from modules import alternated, inputs_of
from serial_vision import serial_config

from tuner.devices import open_device
from tuner.graph import TunedStep, fuse, load_onnx
from tuner.graph.layout.choice import Choice
from tuner.module import build, load
from tuner.report.peers import OURS
from tuning_db.store import open_db

DETECTORS = ("ssd_512_mobilenet1.0", "ssd_512_resnet50_v1", "yolo3_416")
MODELS = ("resnet50_v1", "mobilenet1.0", "squeezenet1.0", *DETECTORS)
TOLERANCE = 1e-4  # for scores, and for boxes relative to the size of the image


def build_before(model: Path, device: str, database: Path, folder: Path) -> Path:
    """Build a network by the database, but with serial vision operators."""
    graph = fuse(load_onnx(model))
    workloads = {step.workload for step in graph.steps if isinstance(step, TunedStep)}
    serial = {w: Choice(config, "default") for w in workloads if (config := serial_config(w)) is not None}
    with open_db(str(database)) as store:
        build(graph, open_device(device), folder, store=store, choices=serial)
    return folder


def check(ours: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest differences of boxes and scores, and the number of boxes.

    Every box is compared with the nearest one of its image and class. End the script if the boxes are not the same.
    """
    boxes, scores, labels = ours.values()
    other_boxes, other_scores, other_labels = wanted.values()
    extent, worst = np.abs(other_boxes).max(initial=1.0), {"boxes": 0.0, "scores": 0.0}
    if len(boxes) != len(other_boxes):
        sys.exit(f"other boxes than onnxruntime's: {len(boxes)} against {len(other_boxes)}")
    for label in np.unique(np.concatenate([labels, other_labels]), axis=0):
        mine, theirs = (np.flatnonzero((found == label).all(1)) for found in (labels, other_labels))
        apart = np.abs(boxes[mine, None] - other_boxes[None, theirs]).max(-1, initial=0) / extent
        unlike = np.abs(scores[mine] - other_scores[theirs].T)
        nearest = (apart + unlike).argmin(1) if len(theirs) else np.zeros(0, int)
        if sorted(nearest) != list(range(len(theirs))):
            sys.exit(f"other boxes than onnxruntime's, of image and class {label.tolist()}")
        rows = np.arange(len(mine))
        worst["boxes"] = max(worst["boxes"], float(apart[rows, nearest].max()))
        worst["scores"] = max(worst["scores"], float(unlike[rows, nearest].max()))
    if max(worst.values()) > TOLERANCE:
        sys.exit(f"boxes or scores differ from onnxruntime's: {worst}")
    return {**worst, "found": float(len(boxes))}


def check_whole(ours: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, float]:
    """End the script if a classifier's outputs differ from onnxruntime's. Return the largest difference otherwise."""
    worst = max(float(np.abs(ours[k] - wanted[k]).max() / np.abs(wanted[k]).max()) for k in wanted)
    if worst > TOLERANCE:
        sys.exit(f"outputs differ from onnxruntime's by {worst:.1e}")
    return {"outputs": worst}


def overhead_of(whole: Path, fallen: Path, seconds: dict[str, float], inputs: dict[str, np.ndarray]) -> float:
    """Return what leaving suppression to the CPU costs beyond the CPU's own time for it, as a share of the latency."""

    def suppressing(module: Path) -> float:
        calls = load(module).profile(inputs)
        return sum(c.seconds for c in calls if c.operator is not None and c.operator.workload.op == "nms")

    without, own = seconds["ours"] - suppressing(whole), suppressing(fallen)
    return (seconds["fallback"] - own - without) / seconds["ours"]


def build_all(name: str, device: str, options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Tune and build a network, and build the variants that the tables compare it with. Return the folders by name."""
    model, database = folder / f"{name}.onnx", folder / "tuning.db"
    if not model.exists():
        tune("zoo", name, "-o", model)
    common = ("--device", device, "--db", database)
    tune("model", model, *common, "--minutes", options.minutes)
    ours = folder / f"{name}-{device.replace(':', '')}"
    tune("build", model, *common, "-o", ours)
    built = {"ours": ours, "untuned": Path(f"{ours}-untuned")}
    build(fuse(load_onnx(model)), open_device(device), built["untuned"])
    if name in DETECTORS:
        built["before"] = build_before(model, device, database, Path(f"{ours}-before"))
    if name in DETECTORS and device != "cpu":
        built["fallback"] = Path(f"{ours}-fallback")
        tune(
            "build", model, "--device", f"{device},cpu", "--fallback", "nms", "--db", database, "-o", built["fallback"]
        )
    return built


def measure(name: str, device: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    built = build_all(name, device, options, folder)
    sources = {**{label: (OURS, path) for label, path in built.items()}, "ort": ("ort", folder / f"{name}.onnx")}
    inputs = inputs_of(built["ours"], options.seed)
    blocks, outputs = alternated(sources, inputs, options.rounds)
    seconds = {label: median(found) for label, found in blocks.items()}
    wanted = outputs.pop("ort")
    differences = {k: (check if name in DETECTORS else check_whole)(v, wanted) for k, v in outputs.items()}
    row = {
        "model": name,
        "device": device,
        "milliseconds": {label: value * 1e3 for label, value in seconds.items()},
        "times_better": {label: value / seconds["ours"] for label, value in seconds.items() if label != "ours"},
        "difference": differences["ours"],
    }
    if "fallback" in built:
        row["fallback_overhead"] = overhead_of(built["ours"], built["fallback"], seconds, inputs)
    return row


def show(row: dict[str, Any]) -> None:
    ratios = "  ".join(f"{label} {value:5.2f}x" for label, value in row["times_better"].items())
    off = ", ".join(f"{label} {value:.2g}" for label, value in row["difference"].items())
    more = f"  falling back costs {row['fallback_overhead']:.2%}" if "fallback_overhead" in row else ""
    ours = row["milliseconds"]["ours"]
    print(f"{row['model']:24s} {row['device']:10s} {ours:9.2f} ms  {ratios}  ({off}){more}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append", help="default: cpu and opencl:0")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=5.0, help="of tuning, per network and device")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=8, help="alternated blocks per contender")
    parser.add_argument("--seed", type=int, default=0, help="of the random image")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.models:
            for device in options.device or ("cpu", "opencl:0"):
                rows.append(measure(name, device, options, folder))
                show(rows[-1])
    if options.json:
        summary = {f"vs_{k}_{r['model']}_{r['device']}": v for r in rows for k, v in r["times_better"].items()}
        for row in rows:
            if "fallback_overhead" in row:
                summary[f"nms_fallback_overhead_{row['model']}_{row['device']}"] = row["fallback_overhead"]
        machine = {"platform": platform.platform(), "minutes": options.minutes}
        print(json.dumps({"summary": summary, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
