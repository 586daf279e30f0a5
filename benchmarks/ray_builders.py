"""This benchmark compares building candidates through Ray with building them in this machine's process pool.

    python benchmarks/ray_builders.py [--candidates 48] [--rounds 3] [--json]

It measures candidates per second of the pool, and of Ray with one and with two nodes on this machine. All three have
the same cores, which the nodes share, and build the same candidates in turn. Ratios are Ray's rate over the pool's:
below 1 Ray is slower. The benchmark does not show how a cluster scales with its machines. It needs the extra `fleet`,
and at least two cores for two nodes.
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
    """Run `ray start` with these words until the stack ends. Return when the node is up."""
    command = [Path(sys.executable).with_name("ray"), "start", "--block", "--disable-usage-stats", *words]
    with log.open("wb") as out:
        # The process gets no session of its own, because the system shares cores between sessions first.
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=out, process_group=0)
    stack.callback(end, process.pid)
    while STARTED not in log.read_bytes():
        if process.poll() is not None:
            sys.exit(log.read_text())
        time.sleep(0.1)


def end(group: int) -> None:
    """Kill the process group of a node. Ray's workers are in their own groups and end with their node."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def start_cluster(stack: ExitStack, name: str, cpus: list[int]) -> str:
    """Start a cluster and return its address. It has a head that builds nothing, and a node for each number of CPUs."""
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
    """Build the candidates once and return how many were built per second."""
    started = time.perf_counter()
    with runner._builder.batch(candidates) as building:
        seconds = time.perf_counter() - started
        failed = [failure for i in range(len(candidates)) if (failure := building.failure(i)) is not None]
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
            rate(runners[name], candidates)  # a warm-up that starts the workers
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
