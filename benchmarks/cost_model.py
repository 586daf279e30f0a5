"""This benchmark compares objectives and features of the cost model on recorded spaces.

    python benchmarks/cost_model.py [--spaces FILE ...] [--seeds 10] [--train 32 64 128] [--per-store] [--json]

A model learns from some random trials of a space and ranks all other configs. "found" is the best throughput among the
sixteen that it ranks first, divided by the best throughput among all others. "order" is Spearman's correlation. The
objectives are regression of the throughput, which CostModel uses, and rank:pairwise. --per-store adds the features of
TVM's own extractor (Zheng et al., "Ansor", OSDI 2020, section 5.2): one vector for each store, pooled by maximum and
sum. They need the lowered kernel, which takes 20 to 150 ms per config, so all spaces are thinned to --configs configs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import xgboost

from templates.template import template_named
from tuner.devices import open_device
from tuner.measure.replay.recorded import SUFFIX, RecordedSpace, read
from tuner.search.cost_model import PARAMETERS, ROUNDS, throughput
from tuning_db.record import Config

FOLDER = Path(__file__).with_name("spaces")
OBJECTIVES = ("reg:squarederror", "rank:pairwise")
FIRST = 16


def per_store(path: Path, configs: Sequence[Config]) -> tuple[list[list[float]], float]:
    """Return the pooled per-store features of every config, and the median seconds that a config took."""
    from tvm import IRModule, s_tir
    from tvm.s_tir import meta_schedule as ms

    space = read(path)
    target = (open_device("cpu", 1) if space.device.kind == "cpu" else open_device("opencl:0")).target
    extractor, rows, took = ms.feature_extractor.PerStoreFeature(), [], []
    for config in configs:
        started = time.perf_counter()
        function = template_named(config.template).prim_func(space.workload, target, config)
        module = IRModule({"main": function})
        context = ms.TuneContext(mod=module, target=target, task_name="one", num_threads=1)
        (found,) = extractor.extract_from(context, [ms.MeasureCandidate(s_tir.Schedule(module), [])])
        stores = found.numpy()
        rows.append([float(len(stores)), *stores.max(axis=0), *stores.sum(axis=0)])
        took.append(time.perf_counter() - started)
    return rows, float(np.median(took))


def chosen(space: RecordedSpace, most: int) -> list[Config]:
    """Return configs that ran, thinned at random to about `most`. The fastest sixty-four are among them."""
    timed = sorted((s, key) for key, s in space.medians.items() if math.isfinite(s))
    fastest = {key for _, key in timed[:64]}
    others = [key for _, key in timed if key not in fastest]
    wanted = fastest | set(random.Random(0).sample(others, min(len(others), max(0, most - len(fastest)))))
    return [c for c in space.configs if c.key in wanted]


def judged(matrix: np.ndarray, speed: np.ndarray, train: int, objective: str, seed: int) -> tuple[float, float]:
    order = list(range(len(speed)))
    random.Random(seed).shuffle(order)
    known, rest = order[:train], order[train:]
    data = xgboost.DMatrix(matrix[known], label=speed[known] / speed[known].max(), missing=math.nan, nthread=1)
    if objective == "rank:pairwise":
        data.set_group([train])
    booster = xgboost.train({**PARAMETERS, "objective": objective}, data, ROUNDS)
    scores = booster.predict(xgboost.DMatrix(matrix[rest], missing=math.nan, nthread=1))
    best = np.argsort(-scores, kind="stable")[:FIRST]
    ranks = [np.argsort(np.argsort(values)) for values in (scores, speed[rest])]
    return float(speed[rest][best].max() / speed[rest].max()), float(np.corrcoef(*ranks)[0, 1])


def judge(path: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    space = read(path)
    configs = chosen(space, given.configs)
    _, encoded = space.space.encode(configs)
    speed = throughput([space.trial(c) for c in configs])
    features = {"knobs and loops": np.array(encoded, dtype=np.float32)}
    seconds = None
    if given.per_store:
        halves = [configs[0::2], configs[1::2]]
        with ProcessPoolExecutor(2) as pool:
            (even, seconds), (odd, _) = pool.map(per_store, [path] * 2, halves)
        stores = np.empty((len(configs), len(even[0])), dtype=np.float32)
        stores[0::2], stores[1::2] = even, odd
        features["per store"] = stores
        features["all"] = np.concatenate([features["knobs and loops"], stores], axis=1)
    rows = []
    for name, matrix in features.items():
        for train in [t for t in given.train if t + FIRST <= len(configs)]:
            for objective in OBJECTIVES:
                results = [judged(matrix, speed, train, objective, seed) for seed in range(given.seeds)]
                rows.append(
                    {
                        "space": path.name.removesuffix(SUFFIX),
                        "features": name,
                        "train": train,
                        "objective": objective,
                        "found": mean(found for found, _ in results),
                        "order": mean(order for _, order in results),
                        "per_store_seconds": seconds,
                    }
                )
                print(
                    "{space:32} {features:16} {train:4} {objective:17} {found:.3f} {order:.3f}".format(**rows[-1]),
                    file=sys.stderr,
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", nargs="*", type=Path, default=sorted(FOLDER.glob(f"*{SUFFIX}")))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--train", nargs="*", type=int, default=[32, 64, 128])
    parser.add_argument("--configs", type=int, default=800)
    parser.add_argument("--per-store", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    given = parser.parse_args()
    rows = [row for path in given.spaces for row in judge(path, given)]
    print("\nmeans over all spaces", file=sys.stderr)
    for name in dict.fromkeys(row["features"] for row in rows):
        for train in given.train:
            for objective in OBJECTIVES:
                same = [r for r in rows if (r["features"], r["train"], r["objective"]) == (name, train, objective)]
                if not same:
                    continue
                found, order = mean(r["found"] for r in same), mean(r["order"] for r in same)
                print(f"{name:16} {train:4} {objective:17} {found:.3f} {order:.3f}", file=sys.stderr)
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
