"""This benchmark compares our stages with greedy stages and with sequential kernels, and how well stage sums predict.

    python benchmarks/stages.py [--device opencl:0] [--models squeezenet1.0 inception_v3 ...] [--batch 1 8 16]
                                [--size 64] [--minutes 0] [--search-minutes 5] [--schedules 200] [--turns 8]
                                [--rounds 25] [--folder DIR] [--quick] [--json]

The method is that of the paper on inter-operator parallelism (ICLR 2020 submission). --models takes any networks of the
zoo; table 5 of the paper has nasnet_a_large and randwire, not the small variants that are the default here.

Each network is tuned for --minutes (with 0 it uses the templates' default configs). Then its stages are searched for.
The search is repeated with only the measurements that the database has by then (`search_seconds_from_database`). The
three schedules are built as modules, which take turns in whole inferences. Ratios are their latencies over ours: above
1 ours is faster. On an Nvidia GPU torch runs the same file too: eagerly, compiled, and captured into a CUDA graph
(stages_child.py). Where torch or CUDA is missing, a line says so.

Random schedules test the prediction. They differ in their stages of several groups, half of which are merged where that
is possible (`_unmerged`: a second set without merging); all other kernels run one after the other. Each schedule is
launched as a whole, on the same memory, and compared with the sum of the times of its stages:

order_accuracy  the share of pairs in which the schedule that is predicted to be faster is faster; section 5.7 of the
                paper has 0.937
ceiling         the order accuracy that a perfect prediction would reach. It is derived from how well one half of the
                turns repeats the other, so more turns raise it
repeatability   the share of pairs that both halves of the turns put in the same order
spread          the standard deviation of the schedules' times as a share of their mean
noise           nine of ten schedules differ by less than this share between the two halves
_clear          the same shares for only those pairs that differ by more than the noise

All schedules take several turns, each turn in a new order, and the median of the turns counts. On the CPU, which uses
TVM_NUM_THREADS threads (at least two), no stage has more groups than there are threads; that holds for greedy stages
too. --size sets the rows and columns of the images: on small images a kernel no longer fills a device. With --folder
the measurements are kept, and a second run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import onnx
from models_cpu import tune
from stage_orders import different, order, random_schedule

from tuner.devices import Device, open_device
from tuner.graph import DevicePlan, Placed, fuse, load_onnx, lower_placed, why_not_captured
from tuner.graph.layout.choice import choose
from tuner.stages import OperatorGraph, Options, Schedule, Stage, StageSearchResult, greedy, search, sequential, total
from tuner.stages.bench import StageBench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts
from tuner.stages.merge import Merging
from tuner.stages.plan import compare, feasible
from tuner.stages.rewrite import staged
from tuner.stages.search import PATIENCE
from tuning_db.store import Store, open_db

MODELS = ("squeezenet1.0", "inception_v3", "nasnet_a_mobile", "randwire_small")
CHILD = Path(__file__).with_name("stages_child.py")
WIDEST = 4  # most groups in a stage of a random schedule


def orders(
    graph: OperatorGraph,
    bench: StageBench,
    costs: MeasuredCosts,
    merging: Merging,
    options: argparse.Namespace,
    widest: int,
) -> dict[str, Any]:
    """Return how well sums of stages order random schedules, half of whose mergeable stages are merged.

    Where the network has such stages, the result has the same figures for schedules without merging (`unmerged`).
    """

    def drawn(merges: Callable[[Stage], bool]) -> list[Schedule]:
        random = Random(options.seed)
        made = (random_schedule(graph, random, widest, merges) for _ in range(20 * options.schedules))
        return different(list(made), options.schedules)

    def measured(made: Sequence[Schedule]) -> dict[str, Any]:
        return order(bench, costs, made, options.turns, Random(options.seed))

    either, plain = drawn(lambda stage: merging.kernel(stage) is not None), drawn(lambda _stage: False)
    if either == plain:
        return measured(plain)
    return {**measured(either), "unmerged": measured(plain)}


def ways(
    placed: Placed, calls: Calls, merging: Merging, schedules: dict[str, Schedule], device: Device, rounds: int
) -> dict[str, float]:
    """Return the milliseconds of whole inferences of modules, by the name of the schedule.

    On CUDA, modules that can be captured are also timed as captured graphs.
    """
    networks = {name: staged(placed, calls, schedule, merging=merging) for name, schedule in schedules.items()}
    graphs = {name: n for name, n in networks.items() if why_not_captured(n.module, device.target) is None}
    networks |= {f"{name}_captured": replace(network, captured=True) for name, network in graphs.items()}
    times = compare(list(networks.values()), device, rounds)
    return {name: 1e3 * median(taken) for name, taken in zip(networks, times, strict=True)}


def torch_ways(model: Path, device: Device, rounds: int) -> dict[str, float]:
    """Return the milliseconds of the same file in torch on an Nvidia GPU.

    Where that is not possible, print a line that says why and return an empty dictionary.
    """
    if not device.name.startswith("cuda"):
        print(f"torch is skipped: it is compared with on CUDA alone, not on {device.name}", file=sys.stderr)
        return {}
    command = [sys.executable, str(CHILD), str(model), "--device", device.name, "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = json.loads(done.stdout) if not done.returncode else {"skipped": f"it ended with status {done.returncode}"}
    if "skipped" in found:
        print(f"torch is skipped: {found['skipped']}", file=sys.stderr)
        return {}
    return found


def written(name: str, batch: int, size: int | None, folder: Path) -> Path:
    """Write the network's file and return its path.

    With `size`, its images have that many rows and columns. For NasNet-A, whose padding depends on whether sizes are
    odd, it must be a multiple of 32.
    """
    path = folder / f"{name}-{batch}{f'-{size}' if size else ''}.onnx"
    if not path.exists():
        tune("zoo", name, "-o", path, "--batch", batch)
        if size is not None:
            model = onnx.load(path)
            rows, columns = model.graph.input[0].type.tensor_type.shape.dim[2:]
            rows.dim_value = columns.dim_value = size
            onnx.save(model, path)
    return path


def measure(name: str, batch: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model, database, device = (
        written(name, batch, options.size, folder),
        folder / "tuning.db",
        open_device(options.device),
    )
    if options.minutes:
        tune("model", model, "--device", device.name, "--db", database, "--minutes", options.minutes, "--merged")
    graph = fuse(load_onnx(model))
    with open_db(str(database)) as store:
        choices = choose((s.workload for s in graph.tuned), device, store)
        device_plan = DevicePlan(device.target, {w: c.config for w, c in choices.items()})
        placed = lower_placed(graph, [device_plan], [0] * len(graph.steps))
        row = {"model": name, "batch": batch, "size": options.size, **measured(placed, device, store, options)}
    row["ms"] |= torch_ways(model, device, options.rounds)
    return row


def measured(placed: Placed, device: Device, store: Store, options: argparse.Namespace) -> dict[str, Any]:
    calls = Calls.of(placed)
    merging = Merging(placed, calls, device, store=store)
    graph = calls.graph(merging.kinds)
    began = time.perf_counter()
    bench = StageBench(placed, calls, device, merging=merging)
    compiling = time.perf_counter() - began
    widest = device.threads if device.is_host else None
    costs = MeasuredCosts(calls, bench, device, store=store, merging=merging)
    end = time.monotonic() + 60 * options.search_minutes
    asked = Options(feasible(None, device, merging), widest=widest, patience=PATIENCE)
    found, seconds = searched(graph, costs, asked, lambda: time.monotonic() < end)
    again = MeasuredCosts(calls, bench, device, store=store, merging=merging)
    _, from_database = searched(graph, again, asked, lambda: False)
    schedules = {"sequential": sequential(graph), "greedy": greedy(graph, widest), "ours": found.schedule}
    costs.prepare(list(chain.from_iterable(schedules.values())))
    schedules = {way: s for way, s in schedules.items() if math.isfinite(total(costs, s))}  # greedy may be impossible
    divided = {way: tuple(map(costs.divided, schedule)) for way, schedule in schedules.items()}
    return {
        "operators": len(graph),
        "blocks": len(found.blocks),
        "transitions": sum(b.transitions for b in found.blocks),
        "narrowed": sorted({str(b.limits) for b in found.blocks if b.cut.groups or b.cut.operators}),
        "compile_seconds": compiling,
        "search_seconds": seconds,
        "search_seconds_from_database": from_database,
        "stages_unmeasured": sum(b.unmeasured for b in found.blocks),
        "stages_measured": costs.measured,
        "stages_measured_again": again.measured,
        "finished": found.finished,
        "stages": len(found.schedule),
        "wide_stages": sum(len(s.groups) > 1 and not s.merged for s in found.schedule),
        "merged_stages": sum(s.merged for s in found.schedule),
        "predicted_ms": {way: 1e3 * total(costs, schedule) for way, schedule in schedules.items()},
        "ms": ways(placed, calls, merging, divided, device, options.rounds),
        **orders(graph, bench, costs, merging, options, min(WIDEST, widest or WIDEST)),
    }


def searched(
    graph: OperatorGraph, costs: MeasuredCosts, options: Options, may_go_on: Callable[[], bool]
) -> tuple[StageSearchResult, float]:
    """Search for stages and return the result and the seconds that the search took."""
    began = time.perf_counter()
    found = search(graph, costs, options, may_go_on)
    return found, time.perf_counter() - began


ORDERS = ("order_accuracy", "ceiling", "repeatability", "order_accuracy_clear", "clear_pairs", "noise", "spread")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        name, ms = row["model"] if row["batch"] == 1 else f"{row['model']}_batch{row['batch']}", row["ms"]
        found |= {f"vs_{way}_{name}": taken / ms["ours"] for way, taken in ms.items() if way != "ours"}
        found |= {f"{what}_{name}": row[what] for what in ("search_seconds", "search_seconds_from_database")}
        found |= {f"{what}_{name}": row[what] for what in ORDERS if row[what] is not None}
        unmerged = row.get("unmerged", {})
        found |= {f"{what}_unmerged_{name}": unmerged[what] for what in ORDERS if unmerged.get(what) is not None}
        found[f"predicted_over_measured_{name}"] = row["predicted_over_measured"]
    for what in ("order_accuracy", "ceiling", "repeatability"):
        found[what] = fmean(row[what] for row in rows)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--size", type=int)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--search-minutes", type=float, default=5.0)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet alone, 20 schedules")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("--turns: at least 2, of which one half is compared with the other")
    if options.quick:
        options.models, options.schedules, options.rounds = ["squeezenet1.0"], 20, 7
    return options


def main() -> int:
    options, rows = arguments(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, batch in product(options.models, options.batch):
            rows.append(measure(name, batch, options, folder))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    load = os.getloadavg()
    machine = {"machine": platform.machine(), "device": open_device(options.device).key.as_dict(), "load": load}
    result = {"summary": summary(rows), "rows": rows, "machine": machine}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result["summary"].items():
            print(f"{name:40} {value:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
