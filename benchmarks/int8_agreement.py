"""This benchmark counts how often a quantised classifier says what onnxruntime says.

    python benchmarks/int8_agreement.py MODEL.onnx=MODULE ... [--images 200] [--json FILE]

MODULE is what `tune build` made of the file (benchmarks/int8.py keeps both with --folder). Images are random. Each pair
of our module, onnxruntime, and onnxruntime without graph optimisation is compared: the images whose largest output is
the same, the share of outputs that are equal or apart by a step of the last quantisation, and the most steps between
two. Numbers between two steps are rounded to either, which later layers carry on: onnxruntime with its own graph
optimisation differs from itself.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from models_cpu import machine

from tuner.module import load

_NEAR = 1.01  # steps, as outputs are rounded to float32


def step_of(values: np.ndarray) -> float:
    """Return the smallest difference of two quantised values, which are several."""
    apart = np.diff(np.unique(values))
    return float(apart[apart > 1e-6 * np.abs(values).max()].min())


def session(path: Path, *, optimised: bool) -> onnxruntime.InferenceSession:
    """Return a session of one thread."""
    options, levels = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
    options.intra_op_num_threads = 1
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options)


def results(path: Path, module: Path, images: int) -> dict[str, np.ndarray]:
    """Return the first output of each contender for all images, as (images, values)."""
    ours, sessions = load(module), {f"onnxruntime{n}": session(path, optimised=not n) for n in ("", " unoptimised")}
    given = ours.manifest.inputs[0]
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("ours", *sessions)}
    for seed in range(images):
        shape = [int(size) for size in given.shape]
        inputs = {given.name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
        found["ours"].append(next(iter(ours(inputs).values())))
        for name, each in sessions.items():
            found[name].append(each.run(None, inputs)[0])
    return {name: np.stack(arrays).reshape(images, -1) for name, arrays in found.items()}


def compared(name: str, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a row for each pair of contenders."""
    rows, step = [], step_of(arrays["onnxruntime"])
    for one, other in combinations(arrays, 2):
        apart = np.abs(arrays[one] - arrays[other]) / step
        rows.append(
            {
                "network": name,
                "pair": f"{one}, {other}",
                "same_top1": int((arrays[one].argmax(1) == arrays[other].argmax(1)).sum()),
                "equal": float((apart < 0.5).mean()),
                "within_a_step": float((apart < _NEAR).mean()),
                "most_steps": round(float(apart.max())),
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="MODEL.onnx=MODULE")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"| network | compared | same top-1 of {asked.images} | equal | within a step | most steps |")
    print("|---|---|---|---|---|---|")
    for pair in asked.pairs:
        path, module = map(Path, pair.split("=", 1))
        for row in compared(path.stem, results(path, module, asked.images)):
            rows.append(row)
            print(
                f"| {row['network']} | {row['pair']} | {row['same_top1']} | {row['equal']:.1%} "
                f"| {row['within_a_step']:.2%} | {row['most_steps']} |",
                flush=True,
            )
    if asked.json is not None:
        ours = [row["within_a_step"] for row in rows if row["pair"] == "ours, onnxruntime"]
        summary = {"least_within_a_step": min(ours)}
        asked.json.write_text(json.dumps({"summary": summary, "rows": rows, "machine": machine()}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
