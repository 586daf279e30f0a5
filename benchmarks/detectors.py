"""Detection networks end to end, with and without this project's vision operators (paper 003, table 4).

    python benchmarks/detectors.py [--device cpu ...] [--models ssd_512_mobilenet1.0 ...] [--minutes 5] [--folder DIR]
                                   [--rounds 8] [--json]

Each network of the zoo is tuned for the minutes, built, and held against onnxruntime: the same boxes with the same
labels, scores within 1e-4. "Before" is the same module with sorting, suppression and compaction by one work-item for
each class (benchmarks/serial_vision.py). Both and onnxruntime, which runs on all cores of the CPU, take turns in one
run, each in a process of its own. Ratios are latencies over ours: above 1 is ours ahead. With --folder what was written
stays, and a second run goes on.
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
from tuner.graph.choice import Choice
from tuner.module import build
from tuner.report.peers import OURS
from tuning_db.store import open_db

MODELS = ("ssd_512_mobilenet1.0", "ssd_512_resnet50_v1", "yolo3_416")
TOLERANCE = 1e-4  # of scores; of boxes relative to the image


def build_before(model: Path, device: str, database: Path, folder: Path) -> Path:
    """As the database says, but for the vision operators."""
    graph = fuse(load_onnx(model))
    workloads = {step.workload for step in graph.steps if isinstance(step, TunedStep)}
    serial = {w: Choice(config, "default") for w in workloads if (config := serial_config(w)) is not None}
    with open_db(str(database)) as store:
        build(graph, open_device(device), folder, store, choices=serial)
    return folder


def check(ours: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, float]:
    """How far boxes and scores are from each other, every box beside the nearest of its image and class. Ends the
    script where the boxes are not the same."""
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


def measure(name: str, device: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model, database = folder / f"{name}.onnx", folder / "tuning.db"
    if not model.exists():
        tune("zoo", name, "-o", model)
    common = ("--device", device, "--db", database)
    tune("model", model, *common, "--minutes", options.minutes)
    after = folder / f"{name}-{device.replace(':', '')}"
    tune("build", model, *common, "-o", after)
    before = build_before(model, device, database, Path(f"{after}-before"))
    sources = {"ours": (OURS, after), "before": (OURS, before), "ort": ("ort", model)}
    blocks, outputs = alternated(sources, inputs_of(after, options.seed), options.rounds)
    seconds = {label: median(found) for label, found in blocks.items()}
    check(outputs["before"], outputs["ort"])
    return {
        "model": name,
        "device": device,
        "milliseconds": {label: value * 1e3 for label, value in seconds.items()},
        "times_better": {label: seconds[label] / seconds["ours"] for label in ("before", "ort")},
        "difference": check(outputs["ours"], outputs["ort"]),
    }


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
                row = measure(name, device, options, folder)
                rows.append(row)
                print(
                    f"{name:24s} {device:10s} {row['milliseconds']['ours']:8.1f} ms  before"
                    f" {row['times_better']['before']:5.2f}x  onnxruntime {row['times_better']['ort']:5.2f}x "
                    f" {row['difference']['found']:.0f} boxes, differ by {row['difference']['boxes']:.0e},"
                    f" scores {row['difference']['scores']:.0e}",
                    file=sys.stderr,
                )
    if options.json:
        summary = {f"vs_{k}_{r['model']}_{r['device']}": v for r in rows for k, v in r["times_better"].items()}
        machine = {"platform": platform.platform(), "minutes": options.minutes}
        print(json.dumps({"summary": summary, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
