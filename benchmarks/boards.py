"""How a run grows with its boards: trials per second on 1 to 64 of them, and what the host spends.

    python benchmarks/boards.py [--boards 1 4 16 64] [--seconds 1.0] [--trials 12] [--json]

Boards are simulated (benchmarks/simulated_board.py): real agents, real TLS, a real kernel checked here against its
reference, but a measurement that takes --seconds, as one of a convolution with its repetitions does. What builds
candidates is left out: it is the same on any number of boards and grows with the host's cores. "scaling": trials per
second over those of one board times the number of boards; "host cores": what the host's processes computed, per second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from templates.template import search_space
from templates.workloads import Dense
from tuner.devices import open_device
from tuner.devices.board import Boards, Pairing
from tuner.measure import BoardRunner, Candidate, MeasureOptions, Repetition
from tuner.measure.jobs import BuildJob, RunJob

AGENT = Path(__file__).with_name("simulated_board.py")
WORKLOAD = Dense(rows=1, in_features=64, out_features=64).workload(("bias", "relu"))


def start_board(stack: ExitStack, folder: Path, name: str, seconds: float) -> None:
    """Returns when it is paired and listens."""
    with Pairing(Boards(), name, "127.0.0.1") as pairing:
        command = [sys.executable, AGENT, str(seconds), "--port", "0", "--pair", str(pairing.code)]
        process = stack.enter_context(
            subprocess.Popen([*map(str, command), "--folder", str(folder / name)], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.terminate)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(pairing.wait(1)))
        waiting.start()
        waiting.join()
    assert process.stdout is not None
    port = next(int(line.rpartition(":")[2]) for line in process.stdout if line.startswith("listening on"))
    board = found[0]
    Boards().add(name, board.address, port, board.pairing, board.ours.read_bytes(), board.theirs.read_bytes())


def cpu_seconds() -> float:
    """Of this process and of what it started for the runner: boards are processes of their own, and not counted."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:2])
    for child in own.children(recursive=True):
        try:
            if not any(str(AGENT) in word for word in child.cmdline()) and not _of_a_board(child):
                total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def _of_a_board(process: psutil.Process) -> bool:
    return any(str(AGENT) in " ".join(parent.cmdline()) for parent in process.parents())


def measure(names: list[str], trials: int) -> dict[str, float]:
    device = open_device("board:" + "+".join(names), 1)
    options = MeasureOptions(repetition=Repetition(most=2))
    with BoardRunner(device, options) as runner, ThreadPoolExecutor(len(names)) as pool:
        (config,) = search_space(WORKLOAD, device.target).seed_configs()[:1]
        candidate, library = Candidate(WORKLOAD, config), runner._new_library()
        (failure,) = runner._pool.build([BuildJob(candidate, str(library))])
        assert failure is None, failure
        job = RunJob(candidate, str(library), options.repetition, None)
        list(pool.map(runner._laboratory.run, [job] * len(names)))  # operands are there
        began, spent = time.perf_counter(), cpu_seconds()
        done = [done for done, _ in pool.map(runner._laboratory.run, [job] * (trials * len(names)))]
        seconds, used = time.perf_counter() - began, cpu_seconds() - spent
    failed = [d.failure for d in done if d.failure is not None]
    if failed:
        sys.exit(f"a trial failed: {failed[0]}")
    return {"boards": len(names), "trials_per_second": len(done) / seconds, "host_cores": used / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--trials", type=int, default=12, help="per board")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["XDG_CONFIG_HOME"] = folder
        names = [f"s{i}" for i in range(max(options.boards))]
        for name in names:
            start_board(stack, Path(folder), name, options.seconds)
        for count in options.boards:
            row = measure(names[:count], options.trials)
            first = rows[0] if rows else row
            alone = first["trials_per_second"] / first["boards"]
            row["scaling"] = row["trials_per_second"] / (alone * count)
            rows.append(row)
            print(
                f"{count:3d} boards: {row['trials_per_second']:6.2f} trials/s, {row['scaling']:.2f} of linear, host "
                f"{row['host_cores']:.2f} cores",
                file=sys.stderr,
                flush=True,
            )
    if options.json:
        summary = {f"scaling_{r['boards']:.0f}": r["scaling"] for r in rows}
        summary |= {f"host_cores_{r['boards']:.0f}": r["host_cores"] for r in rows}
        print(json.dumps({"summary": summary, "rows": rows, "machine": {"platform": platform.platform()}}))


if __name__ == "__main__":
    main()
