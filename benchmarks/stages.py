"""Networks in stages: one kernel after the other, greedy stages and ours, and how well sums of stages predict.

    python benchmarks/stages.py [--device opencl:0] [--models squeezenet1.0 inception_v3 ...] [--batch 1 8 16]
                                [--size 64] [--minutes 0] [--search-minutes 5] [--schedules 200] [--turns 8]
                                [--rounds 25] [--folder DIR] [--quick] [--json]

Each network of the zoo is tuned for the minutes (0: its kernels are the templates' first), its stages are searched for,
and the three ways are run as modules, in turns, with whole inferences timed; above 1 is ours ahead. Random schedules
that differ in stages of several groups (all else is one kernel after the other) are then launched whole, each on the
same memory, and compared with the sums of what their stages take: `order_accuracy`
is the share of pairs of which the one that should be faster is (paper 000, section 5.7, has 0.937). All take several
turns, of which the median counts: `repeatability` is the same share between every other turn and the rest, about what
a perfect prediction would have on this machine. `noise`: nine of ten schedules differ by less, as a share, between the
two; the same shares are counted over those pairs alone that differ by more (`_clear`). On the CPU (TVM_NUM_THREADS
threads, two at least) no stage, a greedy one neither, has more groups than there are threads. --size has the networks
read images of so many rows and columns: on small ones, kernels no longer fill a device. With --folder what was measured
stays, and a second run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain, combinations, product
from pathlib import Path
from random import Random
from statistics import fmean, median, quantiles
from typing import Any

import onnx
from models_cpu import tune

from tuner.devices import Device, open_device
from tuner.graph import Place, Placed, fuse, load_onnx, lower_placed
from tuner.graph.choice import choose
from tuner.stages import OperatorGraph, Options, Schedule, Stage, check, greedy, search, sequential, total
from tuner.stages.bench import Bench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts
from tuner.stages.merge import Merging
from tuner.stages.plan import compare, feasible
from tuner.stages.rewrite import staged
from tuning_db.store import Store, open_db

MODELS = ("squeezenet1.0", "inception_v3", "nasnet_a_mobile", "randwire_small")
WIDEST = 4  # groups of a stage of a random schedule


def random_schedule(graph: OperatorGraph, random: Random, widest: int) -> Schedule:
    """Stages of a few operators that can run, each followed by some that only needed it."""
    done: set[int] = set()
    stages = []
    width, growth = random.randint(1, widest), random.random()
    while len(done) < len(graph):
        free = [i for i in range(len(graph)) if i not in done and done.issuperset(graph.operators[i].reads)]
        groups = []
        for first in random.sample(free, min(len(free), random.randint(1, width))):
            group = [first]
            while random.random() < growth:
                have = done.union(group)
                behind = [
                    i
                    for i, o in enumerate(graph.operators)
                    if i not in have and group[-1] in o.reads and have.issuperset(o.reads)
                ]
                if not behind:
                    break
                group.append(behind[0])
            groups.append(tuple(group))
        stages.append(Stage(tuple(sorted(groups, key=lambda g: (-len(g), g)))))
        done.update(i for group in groups for i in group)
    check(graph, stages)
    return tuple(stages)


def pair_order(one: Sequence[float], other: Sequence[float], apart: float = 0.0) -> tuple[float | None, float]:
    """Of the pairs that differ in the second list by more than a share `apart`: the share that both lists have in the
    same order (None: there are none), and how many of all pairs they are."""
    pairs = [
        (a, b)
        for a, b in combinations(range(len(one)), 2)
        if abs(other[a] - other[b]) > apart * min(other[a], other[b])
    ]
    same = fmean((one[a] < one[b]) == (other[a] < other[b]) for a, b in pairs) if pairs else None
    return same, len(pairs) / math.comb(len(one), 2)


def order(
    graph: OperatorGraph, bench: Bench, costs: MeasuredCosts, options: argparse.Namespace, widest: int
) -> dict[str, Any]:
    """Random schedules: what their stages take together, and what they take, in turns."""
    random, count = Random(options.seed), options.schedules
    made = (random_schedule(graph, random, widest) for _ in range(20 * count))
    schedules = list({frozenset(s for s in schedule if len(s.groups) > 1): schedule for schedule in made}.values())[
        :count
    ]
    costs.prepare([stage for schedule in schedules for stage in schedule])
    predicted = [total(costs, schedule) for schedule in schedules]
    schedules = [tuple(map(costs.divided, schedule)) for schedule in schedules]
    turns = [[bench.schedule_seconds(s, 3) for s in schedules] for _ in range(options.turns)]
    took, one, other = (
        [median(chain.from_iterable(times)) for times in zip(*part, strict=True)]
        for part in (turns, turns[::2], turns[1::2])
    )
    noise = quantiles([abs(a - b) / min(a, b) for a, b in zip(one, other, strict=True)], n=10)[-1]
    clear, share = pair_order(predicted, took, noise)
    return {
        "schedules": len(schedules),
        "order_accuracy": pair_order(predicted, took)[0],
        "repeatability": pair_order(one, other)[0],
        "noise": noise,
        "clear_pairs": share,
        "order_accuracy_clear": clear,
        "repeatability_clear": pair_order(one, other, noise)[0],
        "predicted_over_measured": median(p / m for p, m in zip(predicted, took, strict=True)),
        "fastest_ms": 1e3 * min(took),
        "median_ms": 1e3 * median(took),
        "slowest_ms": 1e3 * max(took),
    }


def ways(
    placed: Placed, calls: Calls, merging: Merging, schedules: dict[str, Schedule], device: Device, rounds: int
) -> dict[str, float]:
    """Milliseconds of whole inferences as modules."""
    networks = [staged(placed, calls, schedule, merging=merging) for schedule in schedules.values()]
    times = compare(networks, device, rounds)
    return {name: 1e3 * median(taken) for name, taken in zip(schedules, times, strict=True)}


def written(name: str, batch: int, size: int | None, folder: Path) -> Path:
    """The network's file; with `size`, of images of so many rows and columns (of NasNet-A, whose padding depends on
    whether sizes are odd, a multiple of 32)."""
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
        place = Place(device.target, {w: c.config for w, c in choices.items()})
        placed = lower_placed(graph, [place], [0] * len(graph.steps))
        return {"model": name, "batch": batch, "size": options.size, **measured(placed, device, store, options)}


def measured(placed: Placed, device: Device, store: Store, options: argparse.Namespace) -> dict[str, Any]:
    calls = Calls.of(placed)
    merging = Merging(placed, calls, device, store)
    graph = calls.graph(merging.kinds)
    began = time.perf_counter()
    bench = Bench(placed, calls, device, merging=merging)
    compiling = time.perf_counter() - began
    costs = MeasuredCosts(calls, bench, device, store, merging=merging)
    began = time.perf_counter()
    end = time.monotonic() + 60 * options.search_minutes
    limits = feasible(None, device, merging)
    widest = device.threads if device.is_host else None
    found = search(graph, costs, Options(limits, widest=widest), lambda: time.monotonic() < end)
    seconds = time.perf_counter() - began
    schedules = {"sequential": sequential(graph), "greedy": greedy(graph, widest), "ours": found.schedule}
    costs.prepare(list(chain.from_iterable(schedules.values())))
    divided = {way: tuple(map(costs.divided, schedule)) for way, schedule in schedules.items()}
    return {
        "operators": len(graph),
        "blocks": len(found.blocks),
        "transitions": sum(b.transitions for b in found.blocks),
        "narrowed": sorted({str(b.limits) for b in found.blocks if b.cut.groups or b.cut.operators}),
        "compile_seconds": compiling,
        "search_seconds": seconds,
        "stages_measured": costs.measured,
        "finished": found.finished,
        "stages": len(found.schedule),
        "wide_stages": sum(len(s.groups) > 1 and not s.merged for s in found.schedule),
        "merged_stages": sum(s.merged for s in found.schedule),
        "predicted_ms": {way: 1e3 * total(costs, schedule) for way, schedule in schedules.items()},
        "ms": ways(placed, calls, merging, divided, device, options.rounds),
        **order(graph, bench, costs, options, min(WIDEST, widest or WIDEST)),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        name, ms = row["model"] if row["batch"] == 1 else f"{row['model']}_batch{row['batch']}", row["ms"]
        found[f"vs_sequential_{name}"] = ms["sequential"] / ms["ours"]
        found[f"vs_greedy_{name}"] = ms["greedy"] / ms["ours"]
        found[f"search_seconds_{name}"] = row["search_seconds"]
        for what in ("order_accuracy", "repeatability", "order_accuracy_clear", "clear_pairs", "noise"):
            if row[what] is not None:
                found[f"{what}_{name}"] = row[what]
        found[f"predicted_over_measured_{name}"] = row["predicted_over_measured"]
    found["order_accuracy"] = fmean(row["order_accuracy"] for row in rows)
    found["repeatability"] = fmean(row["repeatability"] for row in rows)
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
