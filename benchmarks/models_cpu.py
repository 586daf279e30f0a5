"""This benchmark compares whole networks on the CPU with onnxruntime, tuned and built by the `tune` command.

    python benchmarks/models_cpu.py [--quick] [--json] [--models resnet18,...] [--minutes 9] [--against ort,openvino]
        [--folder DIR]

For every model and thread count it runs `tune model` with a budget of --minutes, `tune build`, and `tune bench
--against ort` (or whatever --against names, onnxruntime first), in which all alternate. Ratios are onnxruntime's
latency over ours: above 1 ours is faster. For ResNet-18 on one thread the budget is spent in slices with a comparison
after each. They show after how many minutes of tuning the latency is 0.60 of onnxruntime's. With --folder the models,
the database and the built modules are kept, and a second run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODELS = ("resnet18", "resnet50_v1", "squeezenet1.0", "mobilenet1.0")
PEER = "ort"  # the first of those that a network is compared with
GOAL = 0.60  # share of the peer's latency that minutes_to_060_ort_resnet18 waits for
SLICE_MINUTES = 1.0


@dataclass(frozen=True)
class Job:
    """A job that tunes and compares one network at one thread count, in one folder."""

    folder: Path
    model: str
    threads: int
    rounds: int
    peers: tuple[str, ...]

    @property
    def onnx(self) -> Path:
        return self.folder / f"{self.model}.onnx"

    @property
    def module(self) -> Path:
        return self.folder / f"{self.model}-{self.threads}t"

    def tune(self, minutes: float) -> dict[str, Any]:
        """Tune until the database has spent `minutes` on this model in total."""
        return tune("model", self.onnx, *self._common(), "--minutes", minutes)

    def compare(self) -> dict[str, Any]:
        """Build from the database and compare with the peers."""
        tune("build", self.onnx, *self._common(), "-o", self.module)
        against = ("--against", ",".join(self.peers), "--threads", self.threads, "--rounds", self.rounds)
        comparison = tune("bench", self.module, "--model", self.onnx, *against)
        if len(comparison["peers"]) < len(self.peers):
            sys.exit(f"{self.model}: not every peer could be compared with: {comparison['skipped']}")
        return comparison

    def _common(self) -> tuple[Any, ...]:
        return "--device", "cpu", "--threads", self.threads, "--db", self.folder / "tuning.db"


def tune(*arguments: Any) -> dict[str, Any]:
    """Run one `tune` command and return its JSON object. End this script with a message if it fails."""
    command = [sys.executable, "-m", "tuner.cli.main", *map(str, arguments), "--json"]
    print("+ tune", *command[3:], file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"tune {arguments[0]} ended with status {done.returncode}")
    return json.loads(done.stdout)


def measure(job: Job, minutes: float) -> dict[str, Any]:
    """Tune for all minutes, compare, and return the row."""
    started = datetime.now(UTC)
    job.tune(minutes)
    return row(job, job.compare(), minutes, started)


def measure_in_slices(job: Job, minutes: float) -> tuple[dict[str, Any], float | None]:
    """Tune in slices with a comparison after each.

    Return the row, and the minutes of tuning after which the latency was at most GOAL of the peer's (None if it never
    was).
    """
    started = datetime.now(UTC)
    spent, reached = 0.0, None
    while True:
        spent = min(spent + SLICE_MINUTES, minutes)
        job.tune(spent)
        comparison = job.compare()
        if reached is None and comparison["peers"][0]["latency_ratio"] <= GOAL:
            reached = spent
        if spent >= minutes:
            return row(job, comparison, spent, started), reached


def row(job: Job, comparison: dict[str, Any], minutes: float, started: datetime) -> dict[str, Any]:
    ours, peer = comparison["ours"], comparison["peers"][0]
    return {
        "model": job.model,
        "threads": job.threads,
        "minutes": minutes,
        "ours_ms": ours["median_seconds"] * 1e3,
        "peer_ms": peer["median_seconds"] * 1e3,
        "peer": peer["version"],
        "times_better": peer["times_better"],
        "latency_ratio": peer["latency_ratio"],
        "ours_steadiness": ours["steadiness"],
        "peer_steadiness": peer["steadiness"],
        "relative_error": peer["relative_error"],
        "others": {other["version"]: other["median_seconds"] * 1e3 for other in comparison["peers"][1:]},
        "wall_seconds": (datetime.now(UTC) - started).total_seconds(),
    }


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "load_at_start": os.getloadavg()[0],
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: version(name) for name in ("edgetune", "apache-tvm", "onnxruntime")},
    }


def run(jobs: list[Job], minutes: float) -> dict[str, Any]:
    summary: dict[str, float | None] = {}
    rows = []
    here = machine()
    for job in jobs:
        model, count = job.model, job.threads
        if not job.onnx.exists():
            tune("zoo", model, "-o", job.onnx)
        if (model, count) == ("resnet18", 1):
            result, summary["minutes_to_060_ort_resnet18"] = measure_in_slices(job, minutes)
        else:
            result = measure(job, minutes)
        rows.append(result)
        summary[f"vs_ort_{model}_{count}t"] = result["times_better"]
        print(
            f"{model} {count}t: {result['ours_ms']:.2f} ms, {PEER} {result['peer_ms']:.2f} ms, "
            f"{result['times_better']:.2f} times better; "
            + ", ".join(f"{name}: {ms:.2f} ms" for name, ms in result["others"].items()),
            file=sys.stderr,
            flush=True,
        )
    return {"summary": summary, "rows": rows, "machine": here}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ResNet-18 on one thread, two minutes")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--minutes", type=float, default=9.0, help="tuning budget of each model and thread count")
    parser.add_argument("--against", default=PEER, help="peers as `tune bench` names them, ort first")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="keep everything here (default: a temporary folder)")
    options = parser.parse_args()
    if find_spec("onnxruntime") is None:
        print("onnxruntime is not installed: nothing to compare with (pip install onnxruntime)", file=sys.stderr)
        if options.json:
            print(json.dumps({"summary": {}, "rows": [], "machine": {}}))
        return
    models = ["resnet18"] if options.quick else options.models.split(",")
    cores = len(os.sched_getaffinity(0))
    threads = [1] if options.quick else [int(text) for text in options.threads.split(",")]
    for count in [count for count in threads if count > cores]:
        print(f"skipping {count} threads: this process may use {cores} cores", file=sys.stderr)
    threads = [count for count in threads if count <= cores]
    minutes = min(options.minutes, 2.0) if options.quick else options.minutes
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        peers = tuple(options.against.split(","))
        jobs = [Job(folder, model, count, options.rounds, peers) for model in models for count in threads]
        report = run(jobs, minutes)
    print_table(report["rows"])
    if options.json:
        print(json.dumps(report))


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'model':<16}{'threads':>8}{'ours ms':>10}{'ort ms':>10}{'times better':>14}{'steady':>8}", file=sys.stderr)
    for r in rows:
        print(
            f"{r['model']:<16}{r['threads']:>8}{r['ours_ms']:>10.2f}{r['peer_ms']:>10.2f}{r['times_better']:>14.2f}"
            f"{r['ours_steadiness']:>8.2f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
