"""This benchmark compares the tuning database, filled with a million trials, with a scan of a log of JSON lines.

    python benchmarks/database.py [--quick] [--records N] [--database postgresql://...] [--json]

It times importing, looking up a best and adding a trial. The peer finds a best by reading the whole log, as AutoTVM's
apply_history_best did. The benchmark also checks that nothing is lost when the trials are exported and merged, and when
32 processes write at the same time. The trials are made up from a seed. The database is an SQLite file in a temporary
folder, or the PostgreSQL database that --database names, which must be empty and stays filled.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import multiprocessing
import os
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tuning_db import importing, logs, lookup, maintain
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload, canonical_json
from tuning_db.store import Store, open_db

START = datetime(2026, 1, 1, tzinfo=UTC)
WORKLOADS, DEVICES = 200, 5
WRITERS, WRITES = 32, 50


def workloads() -> list[Workload]:
    sizes = ((c, hw) for c in range(16, 1040, 16) for hw in (7, 14, 28, 56))
    return [
        Workload(
            "conv2d",
            {"batch": 1, "in_channels": c, "height": hw, "width": hw, "out_channels": c, "kernel": (3, 3)},
            ("bias", "relu"),
        )
        for c, hw in sizes
    ][:WORKLOADS]


def devices() -> list[DeviceKey]:
    return [DeviceKey("cpu", "x86_64-avx512", "znver4", {"threads": threads}) for threads in range(1, DEVICES + 1)]


def trials(count: int, seed: int) -> Iterator[Trial]:
    """Yield `count` trials spread over all workloads and devices. One in ten failed, and few configs occur twice."""
    rng = random.Random(seed)
    works, devs = workloads(), devices()
    versions = {"edgetune": "0.1.0", "apache-tvm": "0.27.0.post1"}
    for index in range(count):
        knobs = {"oc": 2 ** rng.randrange(6), "ow": rng.randrange(1, 57), "unroll": rng.randrange(64), "split": "rows"}
        failed = rng.random() < 0.1
        base = rng.lognormvariate(-7, 0.5)
        yield Trial(
            rng.choice(works),
            rng.choice(devs),
            Config("cpu.direct", knobs),
            1,
            times=() if failed else tuple(base * rng.uniform(1, 1.05) for _ in range(5)),
            failure=Failure(FailureKind.COMPILE, "register pressure") if failed else None,
            error=None if failed else 1e-6,
            seed=seed,
            searcher="random",
            versions=versions,
            created=START + timedelta(milliseconds=100 * index),
        )


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def scan_best(log: Path, workload: Workload, device: DeviceKey) -> float:
    """Find the best trial of a workload on a device by reading the whole log, and return its seconds."""
    best = float("inf")
    with log.open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            pair = canonical_json(record["workload"]), canonical_json(record["device"])
            if pair == (workload.key, device.key) and record["times"]:
                best = min(best, statistics.median(record["times"]))
    return best


def measure_best(store: Store, seed: int) -> list[float]:
    """Return the seconds of each of 200 look-ups of random pairs of workload and device."""
    rng = random.Random(seed)
    pairs = [(rng.choice(workloads()), rng.choice(devices())) for _ in range(200)]
    return [seconds_of(lambda pair=pair: lookup.best(store, *pair)) for pair in pairs]


def measure_add(store: Store, seed: int) -> list[float]:
    """Add 200 single trials, each noted in the journal and committed to the disk, and return the seconds of each."""

    def journalled(trial: Trial) -> None:
        store.begin(trial.workload, trial.device, [trial.config])
        store.add(trial)

    return [seconds_of(lambda trial=trial: journalled(trial)) for trial in trials(200, seed + 1)]


def _write(url: str, number: int) -> int:
    """Add WRITES trials as one of many writers, each noted in the journal and committed. Return their number."""
    with open_db(url) as store:
        for trial in trials(WRITES, 1000 + number):
            store.begin(trial.workload, trial.device, [trial.config])
            store.add(trial)
    return WRITES


def measure_writers(url: str, store: Store) -> float:
    """Return the seconds that WRITERS processes take for all their trials. Raises AssertionError if one was lost."""
    before = store.stats().trials
    with ProcessPoolExecutor(WRITERS, multiprocessing.get_context("forkserver")) as pool:
        for done in [pool.submit(os.getpid) for _ in range(WRITERS)]:  # until they have started
            done.result()
        start = time.perf_counter()
        written = sum(pool.map(_write, [url] * WRITERS, range(WRITERS)))
        seconds = time.perf_counter() - start
    after = store.stats()
    assert after.trials - before == written, f"{written} trials written, {after.trials - before} found"
    assert after.in_flight == 0
    return seconds


def check_round_trip(store: Store, log: Path, folder: Path) -> tuple[float, float]:
    """Export all trials and merge them into another database, and return the seconds of both.

    Raises AssertionError unless the exports of both databases equal the imported log byte by byte.
    """
    exported, merged = folder / "exported.jsonl", folder / "merged.jsonl"
    export_seconds = seconds_of(lambda: logs.write_file(store.trials(), exported))
    assert filecmp.cmp(log, exported, shallow=False), "the export is not what was imported"
    with open_db(folder / "other.db") as other:
        merge_seconds = seconds_of(lambda: maintain.merge(other, store))
        logs.write_file(other.trials(), merged)
    assert filecmp.cmp(log, merged, shallow=False), "what was merged is not what was there"
    return export_seconds, merge_seconds


def run(records: int, seed: int, url: str | None, say: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), url or str(Path(name) / "tuning.db")
        log = folder / "log.jsonl"
        written = seconds_of(lambda: logs.write_file(trials(records, seed), log))
        say(f"{records} records made and written in {written:.0f} s ({log.stat().st_size / 1e6:.0f} MB)")
        with open_db(url) as store:
            if found := store.stats().trials:
                raise SystemExit(f"{store.name} has {found} trials: this needs an empty database")
            with log.open("rb") as lines:
                imported = seconds_of(lambda: importing.import_log(store, lines))
            say(f"imported at {records / imported:,.0f} records/s")
            exported, merged = check_round_trip(store, log, folder)
            say(f"exported in {exported:.0f} s, merged into SQLite in {merged:.0f} s: both exact")
            best, added = measure_best(store, seed), measure_add(store, seed)
            counted = seconds_of(store.stats)
            together = measure_writers(url, store)
            say(f"{WRITERS} processes added {WRITES} trials each in {together:.1f} s, none lost")
            size = None if store.path is None else store.path.stat().st_size
        scanned = seconds_of(lambda: scan_best(log, workloads()[0], devices()[0]))
    p95 = statistics.quantiles(best, n=20)[-1]
    return {
        "summary": {
            "best_seconds_1m": statistics.median(best),
            "import_records_per_second": records / imported,
        },
        "rows": [
            {"what": "best", "records": records, "seconds": statistics.median(best), "p95_seconds": p95},
            {"what": "best by scanning the log", "records": records, "seconds": scanned},
            {"what": "begin and add one trial", "records": records, "seconds": statistics.median(added)},
            {"what": "stats", "records": records, "seconds": counted},
            {"what": "import", "records": records, "seconds": imported, "file_bytes": size},
            {"what": "export", "records": records, "seconds": exported},
            {"what": "merge into SQLite", "records": records, "seconds": merged},
            {
                "what": f"{WRITERS} writers, a trial",
                "records": WRITERS * WRITES,
                "seconds": together / WRITERS / WRITES,
            },
        ],
        "machine": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "database": f"SQLite {sqlite3.sqlite_version}" if size is not None else "PostgreSQL",
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 thousand records instead of a million")
    parser.add_argument("--records", type=int, help="this many records instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="an empty PostgreSQL database instead of an SQLite file, by its URL")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")
    options = parser.parse_args()
    say_to = sys.stderr if options.json else sys.stdout
    records = options.records or (20_000 if options.quick else 1_000_000)
    result = run(records, options.seed, options.database, lambda text: print(text, file=say_to))
    for row in result["rows"]:
        print(f"{row['what']:26} {row['seconds'] * 1e3:12.3f} ms", file=say_to)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
