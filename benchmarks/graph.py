"""This benchmark compares the graph tuner's plans with simpler choices, and planned times with measured times.

    python benchmarks/graph.py [--devices cpu --devices opencl:0,cpu ...] [--models resnet50_v1 ...] [--minutes 5]
                               [--vendor onnxruntime] [--folder DIR] [--rounds 8] [--json]

Each network of the zoo is tuned on each device for --minutes and planned on all devices together. It is built by the
plan and by simpler choices:

greedy           takes, step after step, the choice that is fastest so far
plain, blocked   use one kind of layout wherever there is a choice
ours, vendors    use one kind of kernel wherever there is a choice
fallback         puts on the CPU only the steps that the GPU cannot compute (Wang et al., "A Unified Optimization
                 Approach for CNN Model Inference on Integrated GPUs", section 3.1.2)

The modules take turns in one run, each in its own process with all threads. "by costs" is the time that the costs
predict, and "took" the measured time. Ratios are over the plan's: above 1 the plan is faster. With --folder the files
are kept, and a second run goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from integrated_gpus import DETECTORS, MODELS, TOLERANCE
from models_cpu import tune
from modules import alternated, inputs_of

from templates.template import PLAIN
from tuner.devices import Device, open_devices
from tuner.graph import FusedGraph, fuse, load_onnx
from tuner.graph.layout.choice import Planned, rivals
from tuner.graph.layout.plan import Node, State, greedy, plan, seconds_of
from tuner.module import OnnxReference, VerifyOptions, build_placed, load, verify
from tuner.placement.exact import NetworkPlan, plan_network, planned_states
from tuner.placement.fallback import fall_back
from tuner.placement.step_costs import Costs
from tuner.report.peers import OURS
from tuner.vendors import open_vendor, vendor_of, vendors_of
from tuning_db.record import Config
from tuning_db.store import Store, open_db

DEVICES = ("cpu", "opencl:0", "opencl:0,cpu")


def restricted(nodes: tuple[Node, ...], keep: Callable[[int, State], bool]) -> tuple[Node, ...]:
    """Restrict nodes to the states that `keep` accepts. A node without such a state keeps all of its states."""
    kept = [tuple(s for s in node.states if keep(i, s)) for i, node in enumerate(nodes)]
    return tuple(replace(n, states=s or n.states) for n, s in zip(nodes, kept, strict=True))


def is_plain(state: State) -> bool:
    return all(form.layout == PLAIN for form in (*state.reads, state.makes))


def is_vendors(state: State) -> bool:
    return bool(state.kernel) and vendor_of(Config.from_dict(json.loads(state.kernel)).template) is not None


def ways(graph: FusedGraph, devices: list[Device], found: NetworkPlan) -> Iterator[tuple[str, float, Planned]]:
    """Yield the plan and the simpler choices: the name, the seconds by the costs, and the plan to build."""
    yield "planned", found.plan.seconds, found.planned
    nodes, moving = found.nodes, found.moving
    states = greedy(nodes, moving)
    yield "greedy", seconds_of(nodes, moving, states), planned_states(graph, nodes, states)
    kept: dict[str, Callable[[int, State], bool]] = {
        "plain": lambda _, state: is_plain(state),
        "blocked": lambda _, state: not is_plain(state),
    }
    if len(devices) > 1:
        first = len(graph.parameters)
        placement = dict(enumerate(fall_back(graph, devices[0].target), first))
        kept["fallback"] = lambda i, state: state.makes.device == placement.get(i, state.makes.device)
    if any(is_vendors(s) for n in nodes for s in n.states):
        kept["ours"] = lambda _, state: not is_vendors(state)
        kept["vendors"] = lambda _, state: is_vendors(state)
    for name, keep in kept.items():
        less = restricted(nodes, keep)
        best = plan(less, moving)
        yield name, best.seconds, planned_states(graph, less, best.states)


def same(one: Planned, other: Planned) -> bool:
    configs = [{out: choice.config for out, choice in p.kernels.items()} for p in (one, other)]
    return list(one.placement) == list(other.placement) and one.blocks == other.blocks and configs[0] == configs[1]


def measure(name: str, names: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model, database, devices = folder / f"{name}.onnx", folder / "tuning.db", open_devices(names.split(","))
    if not model.exists():
        tune("zoo", name, "-o", model)
    vendor = ("--vendor", options.vendor) if options.vendor else ()
    for device in devices:
        tune("model", model, "--device", device.name, "--db", database, "--minutes", options.minutes, *vendor)
    graph = fuse(load_onnx(model))
    with open_db(str(database)) as store:
        began = time.perf_counter()
        costs = Costs(devices, store)
        found = plan_network(
            graph, devices, [rivals((s.workload for s in graph.tuned), d, store) for d in devices], costs
        )
        whole = time.perf_counter() - began
        began = time.perf_counter()
        plan(found.nodes, found.moving)
        solving = time.perf_counter() - began
        rows = compared(graph, devices, found, store=store, options=options, folder=folder)
    kernels = [choice.config for choice in found.planned.kernels.values()]
    return {
        "model": name,
        "devices": names,
        "width": found.plan.width,
        "optimal": found.plan.optimal,
        "seconds_planning": whole,
        "seconds_solving": solving,
        "measured": costs.measured,
        "on_second": sum(found.planned.placement),
        "steps": len(graph.steps),
        "vendors": {v: sum(v in vendors_of([c]) for c in kernels) for v in vendors_of(kernels)},
        "ways": rows,
    }


def compared(
    graph: FusedGraph,
    devices: list[Device],
    found: NetworkPlan,
    *,
    store: Store,
    options: argparse.Namespace,
    folder: Path,
) -> dict[str, dict[str, float]]:
    """Build, verify and time the plan and the simpler choices. Choices that build the same module are timed once."""
    name, built = graph.model.name, dict[str, tuple[Planned, Path]]()
    rows: dict[str, dict[str, Any]] = {}
    for way, seconds, planned in ways(graph, devices, found):
        like = next((other for other, (p, _) in built.items() if same(p, planned)), None)
        rows[way] = {"model_ms": 1e3 * seconds, "as": like or way}
        if like is None:
            to = folder / f"{name}-{'-'.join(d.name.replace(':', '') for d in devices)}-{way}"
            build_placed(graph, devices, planned, directory=to, store=store)
            # The boxes of detectors may come in another order; benchmarks/integrated_gpus.py compares them.
            if name not in DETECTORS:
                checks = VerifyOptions(seeds=[0], tolerance=TOLERANCE)
                verify(load(to), OnnxReference(folder / f"{name}.onnx"), checks)
            built[way] = planned, to
    sources = {way: (OURS, to) for way, (_, to) in built.items()}
    blocks, _ = alternated(sources, inputs_of(built["planned"][1], options.seed), options.rounds)
    for row in rows.values():
        row["ms"] = 1e3 * median(blocks[row["as"]])
    best = rows["planned"]
    for row in rows.values():
        row["over_plan"] = row["ms"] / best["ms"]
        row["model_over_plan"] = row["model_ms"] / best["model_ms"]
        row["model_over_measured"] = row["model_ms"] / row["ms"]
    return rows


def show(row: dict[str, Any]) -> None:
    best = "best" if row["optimal"] else "perhaps not the best"
    print(
        f"{row['model']} on {row['devices']}: width {row['width']}, {best}, solved in {row['seconds_solving']:.2f} s "
        f"({row['measured']} costs measured, {row['seconds_planning']:.0f} s); {row['on_second']} of {row['steps']} "
        f"steps on the second device; {row['vendors'] or 'no vendors'}",
        file=sys.stderr,
    )
    for name, way in row["ways"].items():
        like = "" if way["as"] == name else f" (as {way['as']})"
        print(
            f"  {name:10s} by costs {way['model_ms']:9.3f} ms, {way['model_over_plan']:6.3f} of the plan's; took "
            f"{way['ms']:9.3f} ms, {way['over_plan']:6.3f}; costs/took {way['model_over_measured']:.3f}{like}",
            file=sys.stderr,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--devices", action="append", help="one, or several with commas between; default: cpu, opencl:0 and both"
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=5.0, help="of tuning, per network and device")
    parser.add_argument("--vendor", default="", help="as tune's")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=8, help="alternated blocks per module")
    parser.add_argument("--seed", type=int, default=0, help="of the random image")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    options = parser.parse_args()
    for vendor in filter(None, options.vendor.split(",")):
        open_vendor(vendor)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.models:
            for names in options.devices or DEVICES:
                rows.append(measure(name, names, options, folder))
                show(rows[-1])
    if options.json:
        summary = {
            f"{w}_over_plan_{r['model']}_{r['devices']}": v["over_plan"] for r in rows for w, v in r["ways"].items()
        }
        machine = {"platform": platform.platform(), "minutes": options.minutes}
        print(json.dumps({"summary": summary, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
