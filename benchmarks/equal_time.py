"""This benchmark compares our tuner with MetaSchedule at equal wall time, on convolutions on one thread of a CPU.

    python benchmarks/equal_time.py [--trials 64] [--keep DIR] [--json]

The layers are three of ResNet-18's. MetaSchedule tunes each with its own defaults for --trials trials. Ours gets the
same wall time ("equal") and, again from an empty database, a tenth of it ("tenth"). That includes the start of its
worker processes. Then the three best kernels take turns with cold weights, as in conv2d_cpu.py. Ratios are the seconds
of MetaSchedule's kernel over ours. With --keep DIR the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conv2d_cpu import (
    EPILOGUE,
    SETS,
    files_of,
    geomean,
    layer_name,
    plain_operands,
    time_all,
    tune_layer,
    tune_metaschedule,
)

from templates.workloads import Conv2d
from tuner.devices import Device, last_level_cache_bytes, open_device, usable_cpus
from tuner.measure import LocalRunner, MeasureOptions
from tuner.session import Budget, TuneOptions
from tuning_db.record import Config
from tuning_db.store import open_db

# A layer that Winograd's algorithm can compute, a strided one, and a pointwise one.
LAYERS = (1, 5, 6)
SHARES = {"equal": 1.0, "tenth": 0.1}


def tune_ours(conv: Conv2d, device: Device, seconds: float, file: Path) -> tuple[Config, int, float]:
    """Tune a layer for `seconds`, unless `file` has the result already.

    Return the best config, the number of configs tried, and the seconds that the tuning took.
    """
    workload = conv.workload(EPILOGUE)
    took = file.with_suffix(".json")
    with open_db(str(file)) as store:
        if not took.exists():
            started = time.perf_counter()
            with LocalRunner(device, MeasureOptions()) as runner:
                left = max(1.0, seconds - (time.perf_counter() - started))
                tune_layer(conv, workload, device, store, runner, TuneOptions(budget=Budget(seconds=left)))
            took.write_text(json.dumps(time.perf_counter() - started))
        best = store.best(workload, device.key)
        assert best is not None
        tried = {t.config for t in store.trials(workload, device.key)}
        return best.config, len(tried), json.loads(took.read_text())


def measure(conv: Conv2d, device: Device, trials: int, folder: Path) -> dict[str, Any] | None:
    folder.mkdir(parents=True, exist_ok=True)
    rate = tune_metaschedule(conv, trials, folder, 0)
    if rate is None:
        return None
    wall = trials / rate
    common = {"cpus": usable_cpus()[-1:], "cold_bytes": 2 * last_level_cache_bytes(), "conv": asdict(conv)}
    plain = {**common, "operands": plain_operands(conv, folder)}
    specs: dict[str, dict[str, Any]] = {
        "metaschedule": {**plain, "kind": "library", "library": str(folder / "ms.so")},
    }
    spent = {"metaschedule": {"trials": trials, "seconds": wall}}
    for name, share in SHARES.items():
        config, tried, took = tune_ours(conv, device, share * wall, folder / f"{name}.db")
        spent[name] = {"trials": tried, "seconds": took}
        specs[name] = {**common, **files_of(conv, device, config, folder, name)}
    seconds = time_all(specs, folder, 9)
    ratios = {name: seconds["metaschedule"] / seconds[name] for name in SHARES}
    row = {"layer": layer_name(conv), "kernel_seconds": seconds, "times_faster": ratios, "spent": spent}
    print(
        f"{row['layer']:26} MetaSchedule {1e6 * seconds['metaschedule']:7.0f} us in {wall:4.0f} s;"
        f" ours {ratios['equal']:.2f} times faster in {spent['equal']['seconds']:4.0f} s,"
        f" {ratios['tenth']:.2f} times in {spent['tenth']['seconds']:4.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64, help="of MetaSchedule")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was tuned there, and go on from it")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    given = parser.parse_args()
    device = open_device("cpu", 1)
    with tempfile.TemporaryDirectory() as temporary:
        keep = Path(given.keep or temporary).absolute() / str(given.trials)
        convs = [SETS["resnet18"][i] for i in LAYERS]
        found = [measure(c, device, given.trials, keep / layer_name(c).replace(" ", "_")) for c in convs]
    rows = [row for row in found if row is not None]
    summary = {name: geomean([row["times_faster"][name] for row in rows]) for name in SHARES}
    print("  ".join(f"{name}: {value:.2f}" for name, value in summary.items() if value), file=sys.stderr)
    if given.json:
        machine = {"device": device.key.as_dict(), "platform": platform.platform()}
        print(json.dumps({"summary": summary, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
