"""Read many changed inputs, each in a process that is killed if it takes too long.

    python -m tests.fuzz.run [--count 100000] [--format NAME ...] [--seed N] [--jobs N]

Prints a line for each input whose reader died, hung, or raised what no line tells, and a count of each format; the exit
status is 1 if there were any. `--seed` and the number of an input make it again.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.formats import FORMATS

ROOT = Path(__file__).parents[2]
HANG_SECONDS = 10.0
_START_SECONDS = 120.0
_CHUNK = 5000  # inputs of a process


@dataclass(frozen=True)
class Problem:
    """Says what an input of a format did to its reader."""

    format: str
    number: int
    what: str


def read_inputs(name: str, count: int, seed: int, materials: Path, first: int = 0) -> Iterator[Problem]:
    """Read inputs `first` to `first + count` of a format. A reader that dies or hangs is followed by another."""
    behind = first + count
    while first < behind:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            command = [sys.executable, "-m", "tests.fuzz.child", name, str(seed), str(first), str(behind)]
            with subprocess.Popen(
                [*command, folder, str(materials)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as child:
                last = first - 1
                for line in _lines(child):
                    if line.startswith("{"):
                        said = json.loads(line)
                        yield Problem(name, said["number"], said["what"])
                    elif line.isdigit():
                        last = int(line)
                status = child.wait()
        if status == 0:
            return
        how = "took more than 10 s" if status == -9 else f"ended its reader with status {status}"
        if last < first:
            raise RuntimeError(f"{name}: the reader does not start (status {status})")
        yield Problem(name, last, how)
        first = last + 1


def _lines(child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield what a child writes, line by line; it is killed when it writes nothing for too long."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        wait, rest = _START_SECONDS, b""
        while True:
            if not selector.select(wait):
                child.kill()
                return
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                return
            wait = HANG_SECONDS
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode() for line in whole)


def shares(names: Sequence[str], count: int) -> dict[str, int]:
    """How many inputs of each format there are among `count`: fewer of those that take long."""
    weights = {name: 1 / FORMATS[name].cost for name in names}
    return {name: max(1, round(count * weight / sum(weights.values()))) for name, weight in weights.items()}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--format", choices=sorted(FORMATS), action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    counts = shares(args.format or sorted(FORMATS), args.count)
    found = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        jobs = []
        for name, count in counts.items():
            materials = Path(folder, name)
            materials.mkdir()
            FORMATS[name].make(materials)
            for first in range(0, count, _CHUNK):
                some = min(_CHUNK, count - first)
                jobs.append((name, some, pool.submit(_all, name, some, args.seed, materials, first)))
        for name, some, job in jobs:
            problems = job.result()
            found += len(problems)
            for problem in problems:
                print(f"{problem.format} {problem.number}: {problem.what}")
            print(f"{name}: {some} read, {len(problems)} problems", flush=True)
    return 1 if found else 0


def _all(name: str, count: int, seed: int, materials: Path, first: int) -> list[Problem]:
    return list(read_inputs(name, count, seed, materials, first))


if __name__ == "__main__":
    sys.exit(main())
