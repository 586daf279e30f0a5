"""This benchmark tells how much memory an inference needs by the objectives of `tune build`, and how near the arena of
an export is to what no arena can be smaller than.

    python benchmarks/memory.py MODEL.onnx ... [--db FILE] [--threads 2] [--json FILE]

Networks are lowered for this machine's CPU and not compiled; configs are the database's, else those that come with
edgetune. For each objective there are the MiB of the weights, of the values that TVM plans, of the largest workspace
and of all three, the `peak`, and the seconds that choosing took. `arena` is what `tune export` gives to values, inputs
and workspaces outside of parallel loops, and `bound` the most of them that are needed at one time; both in MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from tvm import tirx

from tuner.devices import Device, open_device
from tuner.export.layout import laid_out
from tuner.graph import DevicePlan, FusedGraph, fuse, load_onnx, lower_placed, program_of, workspace_of
from tuner.graph.layout.choice import Planned, choose
from tuner.graph.layout.weights import smallest
from tuner.module.by_memory import Chooser
from tuner.module.footprint import Lowering
from tuning_db.store import Store, open_db


def rows_of(graph: FusedGraph, device: Device, store: Store | None) -> list[dict[str, Any]]:
    """Return a row for each objective."""
    lowering, rows = Lowering(graph, device, Planned([0] * len(graph.steps))), []
    best = choose([s.workload for s in graph.tuned], device, store)
    fastest = {s.out: best[s.workload] for s in graph.tuned}
    objectives = {
        "latency": lambda: fastest,
        "size": lambda: smallest(graph.anchors, fastest, device=device, store=store),
        "memory": lambda: Chooser(lowering, fastest, store).least(),
    }
    for objective, choices in objectives.items():
        began = time.perf_counter()
        chosen = choices()
        seconds = time.perf_counter() - began
        found = lowering.footprint(chosen)
        configs = {out: choice.config for out, choice in chosen.items()}
        arena, bound = arena_of(graph, device, configs)
        sizes = {"weights": found.weights, "values": found.values, "workspaces": found.workspaces, "peak": found.peak}
        sizes |= {"arena": arena, "bound": bound}
        rows.append({"objective": objective, **{k: v / 2**20 for k, v in sizes.items()}, "seconds": seconds})
    return rows


def arena_of(graph: FusedGraph, device: Device, configs: dict[Any, Any]) -> tuple[int, int]:
    """Return the size of an export's arena, and the bound of it, in bytes."""
    placed = lower_placed(graph, [DevicePlan(device.target, {}, configs)], [0] * len(graph.steps))
    program = program_of(placed.module, len(placed.inputs))
    for name, func in placed.module.functions.items():
        if isinstance(func, tirx.PrimFunc):
            program.workspaces[name.name_hint] = workspace_of(func, device.target)  # type: ignore[index]
    layout = laid_out(program, len(program.outputs))
    return layout.arena, layout.least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--db")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device, rows = open_device("cpu", given.threads), []
    with open_db(given.db, read_only=True) if given.db else contextlib.nullcontext() as store:
        for model in given.models:
            for row in rows_of(fuse(load_onnx(model)), device, store):
                rows.append({"network": model.stem, **row})
                print(
                    "{network:20} {objective:8} weights {weights:7.2f}, values {values:6.2f}, workspaces "
                    "{workspaces:5.2f}, peak {peak:7.2f} MiB, chosen in {seconds:5.1f} s; arena {arena:6.2f}, "
                    "bound {bound:6.2f}".format(**rows[-1]),
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
