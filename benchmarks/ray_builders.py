"""Candidates built per second by the process pool of this machine, and through Ray on one and on two nodes of it.

    python benchmarks/ray_builders.py [--candidates 48] [--rounds 3] [--json]

All three have the same cores (the nodes share them), take the same candidates in turn, and differ only in what lies
between: so a ratio below 1 is what Ray costs, and nothing here tells how a cluster grows with its machines. Needs
the extra `fleet`, and two cores or more for two nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from templates.template import search_space
from templates.workloads import Conv2d
from tuner.devices import open_device, usable_cpus
from tuner.measure import Candidate, LocalRunner, MeasureOptions

WORKLOAD = Conv2d(1, 64, 56, 56, 64, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"))
STARTED = b"Ray runtime started"


def start(stack: ExitStack, log: Path, *words: object) -> None:
    """Run `ray start` with these words until the stack ends; returns when the node is up."""
    command = [Path(sys.executable).with_name("ray"), "start", "--block", "--disable-usage-stats", *words]
    with log.open("wb") as out:
        # No session of its own: the system shares cores between sessions first.
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=out, process_group=0)
    stack.callback(end, process.pid)
    while STARTED not in log.read_bytes():
        if process.poll() is not None:
            sys.exit(log.read_text())
        time.sleep(0.1)


def end(group: int) -> None:
    """Ray's workers are in groups of their own, and end with their node."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def start_cluster(stack: ExitStack, name: str, cpus: list[int]) -> str:
    """Address of a cluster of a head that builds nothing and of one node for each number of CPUs."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    head = ["--head", "--port", address.rpartition(":")[2], "--num-cpus", 0, "--include-dashboard=false"]
    start(stack, folder / "head.log", *head, "--temp-dir", folder / "ray")
    for number, count in enumerate(cpus):
        words = ["--address", address, "--num-cpus", count, "--node-name", f"{name}{number}"]
        start(stack, folder / f"{number}.log", *words)
    return address


def rate(runner: LocalRunner, candidates: list[Candidate]) -> float:
    """Candidates per second."""
    libraries = [runner._new_library() for _ in candidates]
    started = time.perf_counter()
    building = runner._build(candidates, libraries)
    seconds = time.perf_counter() - started
    failed = [failure for i in range(len(candidates)) if (failure := building.failure(i)) is not None]
    runner._remove(libraries)
    if failed:
        sys.exit(f"a build failed: {failed[0]}")
    return len(candidates) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    options = parser.parse_args()
    if find_spec("ray") is None:
        sys.exit("skipped: Ray is not installed (pip install 'edgetune[fleet]')")
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    device, cores, rng = open_device("cpu", 1), len(usable_cpus()), random.Random(0)
    space = search_space(WORKLOAD, device.target)
    assert space is not None
    configs = [config for _ in range(options.candidates) if (config := space.sample(rng)) is not None]
    candidates = [Candidate(WORKLOAD, config) for config in configs]
    layouts = {"pool": [], "ray_1_node": [cores], "ray_2_nodes": [cores // 2, cores - cores // 2]}
    rates: dict[str, list[float]] = {name: [] for name in layouts}
    with ExitStack() as stack:
        runners = {}
        for name, cpus in layouts.items():
            address = start_cluster(stack, name, cpus) if cpus else None
            say = (lambda line: print(line, file=sys.stderr)) if cpus else (lambda _: None)
            runners[name] = stack.enter_context(LocalRunner(device, MeasureOptions(ray=address), say))
            rate(runners[name], candidates)  # workers are there
        for _ in range(options.rounds):
            for name, runner in runners.items():
                rates[name].append(rate(runner, candidates))
                print(f"{name:12} {rates[name][-1]:6.2f} candidates a second", file=sys.stderr, flush=True)
    rows = [{"builders": n, "candidates_per_second": statistics.median(r), "rounds": r} for n, r in rates.items()]
    pool = statistics.median(rates["pool"])
    summary = {f"{name}_vs_pool": statistics.median(r) / pool for name, r in rates.items() if name != "pool"}
    for name, ratio in summary.items():
        print(f"{name}: {ratio:.2f}", file=sys.stderr)
    if options.json:
        machine = {"cpu": device.key.model, "cores": cores, "system": platform.platform()}
        print(json.dumps({"summary": summary, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
