"""This benchmark measures the time and memory of a search itself, on recorded spaces, without a device.

    python benchmarks/replay_speed.py [--searcher model_guided] [--trials 50000] [--spaces FILE ...] [--json]

One process searches the recorded spaces again and again. After every 10,000 trials it prints the seconds that they took
and the memory of the process. Every search goes through a whole recorded space, and its last configs are the most
expensive to find. So a trial of a session costs less than a trial here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

from tuner.measure.replay.recorded import SUFFIX, read
from tuner.session.replaying import replay

FOLDER = Path(__file__).with_name("spaces")
STEP = 10_000


def resident_mib() -> float:
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searcher", default="model_guided")
    parser.add_argument("--trials", type=int, default=5 * STEP)
    parser.add_argument("--spaces", nargs="*", type=Path, default=sorted(FOLDER.glob(f"*{SUFFIX}")))
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    given = parser.parse_args()
    turns = itertools.cycle(read(path) for path in given.spaces)
    rows, seeds = [], itertools.count()
    for total in range(STEP, given.trials + 1, STEP):
        started, left = time.perf_counter(), STEP
        while left:
            left -= len(replay(next(turns), given.searcher, next(seeds), trials=left).delivered)
        row = {"trials": total, "seconds": time.perf_counter() - started, "resident_mib": resident_mib()}
        print("{trials} trials: {seconds:.1f} s, {resident_mib:.0f} MiB".format(**row), file=sys.stderr, flush=True)
        rows.append(row)
    if given.json:
        print(json.dumps({"searcher": given.searcher, "rows": rows}))


if __name__ == "__main__":
    main()
