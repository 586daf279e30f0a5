"""This benchmark measures how tuning scales with 1 to 64 boards: trials per second, and the load of the host.

    python benchmarks/boards.py [--boards 1 4 16 64] [--seconds 1.0] [--trials 60] [--json]

The boards replay recorded spaces (benchmarks/spaces, eight workloads of a Zen 5 core; see
benchmarks/replayed_board.py). Each answers a candidate with its recorded times, after the time that measuring it took.
That time is stretched so that the median of a space is --seconds, as on a slow board. A measurement that takes too long
is ended by the agent. Agents, TLS and kernel processes are real, and all run on this machine.

The host does what it does in a tuning run, by tuner.session.tune. The searcher `auto` proposes candidates, which are
noted in the journal of a new SQLite file. Every board's worker makes the operands and the float64 reference, packs
weights, sends them and a library, and fetches and checks the output. Every trial is committed. Two things are left out.
Nothing is built: a stand-in of a library's size is sent, because builds scale with the host's cores or with Ray, not
with boards. The final comparison of the best configs is left out too, because a single board does it.

scaling     trials per second per board, divided by the same of the first row
alike       the same, as if the first row's trials took as long to measure as this row's; a search that has got further
            measures other configs
busy        the share of the boards' time in which they measured
host cores  the CPU seconds of the host's processes per second of the search

The clock runs from the call of `tune` until as few trials are left as there are boards. At the very end some boards
have nothing to do while others finish, and that would count too much in a short search.
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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import replayed_templates
from replayed_board import stand_in, write

from templates import reference
from templates.template import anchor_template
from tuner.devices import Device, open_device
from tuner.devices.board import Boards, Pairing
from tuner.measure import BoardRunner, MeasureOptions
from tuner.measure.messages import BuildJob
from tuner.measure.workers.build_pool import BuildStopped, Done
from tuner.session import Budget, Progress, Task, TuneOptions, tune
from tuning_db.record import Failure, Workload
from tuning_db.store import open_db

AGENT = Path(__file__).with_name("replayed_board.py")
OPTIONS = MeasureOptions(plugins=("replayed_templates",))
LIBRARY_BYTES = 40_000
TASKS = [Task(known.workload, 1, f"task {i}") for i, known in enumerate(replayed_templates.SPACES)]


def start_board(stack: ExitStack, folder: Path, name: str) -> None:
    """Start an agent as the board `name` and pair with it. Return when it listens."""
    with Pairing(Boards(), name, "127.0.0.1") as pairing:
        command = [sys.executable, AGENT, folder, "--port", "0", "--pair", str(pairing.code)]
        process = stack.enter_context(
            subprocess.Popen(
                [*map(str, command), "--folder", str(folder / name)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # like another machine, a session has its own share of the processor
            )
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
    """Return the CPU seconds of this process and of those that it started for the runner, without the boards'."""
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


class StandIns:
    """A replacement of the builders that writes a stand-in for each candidate's library.

    `seconds` holds the time that measuring a candidate takes, by its key.
    """

    def __init__(self, folder: Path, device: Device, seconds: float) -> None:
        self._device, self._folder = device, folder
        self.seconds: dict[str, float] = {}
        self._outputs: dict[tuple[Workload, str], str] = {}
        answers = []
        for known in replayed_templates.SPACES:
            factor = seconds / median(r.run_seconds for r in known.records.values())
            for config in known.configs:
                found, key = known.records[config.key], known.workload.key + config.key
                assert not isinstance(found.result, Failure), "boards are not told to fail"
                self.seconds[key] = found.run_seconds * factor
                answers.append((key, self.seconds[key], found.result))
            self._write_outputs(known.workload, {space.template for space in known.spaces})
        write(folder, answers)

    def _write_outputs(self, workload: Workload, names: set[str]) -> None:
        expected = reference.reference(workload, reference.random_operands(workload, OPTIONS.seed))
        for name in names:
            out = anchor_template(name).layouts(workload, self._device.target).out
            file = self._outputs[workload, name] = f"out{len(self._outputs)}"
            np.save(self._folder / f"{file}.npy", out.pack(expected.astype(workload.dtype)))

    def build(
        self, jobs: Sequence[BuildJob], done: Done | None = None, stop: threading.Event | None = None
    ) -> list[Failure | None]:
        for place, job in enumerate(jobs):
            assert job.candidate is not None
            if stop is not None and stop.is_set():
                raise BuildStopped
            workload, config = job.candidate.workload, replayed_templates.original(job.candidate.config)
            made = stand_in(workload.key + config.key, self._outputs[workload, config.template], LIBRARY_BYTES)
            Path(job.library).write_bytes(made)
            if done is not None:
                done(place, None)
        return [None] * len(jobs)


class Watch:
    """A watch that records when trials were measured and what the host computed, and interrupts the run at the end.

    The end is where the final comparison would begin.
    """

    def __init__(self) -> None:
        self.began, self._spent = time.perf_counter(), cpu_seconds()
        self.times: list[float] = []
        self.host_cores = 0.0

    def show(self, progress: Progress) -> None:
        if progress.phase == "compare":
            self.host_cores = (cpu_seconds() - self._spent) / (time.perf_counter() - self.began)
            raise KeyboardInterrupt
        self.times.append(time.perf_counter())


def measure(names: list[str], trials: int, stand_ins: StandIns) -> dict[str, float]:
    device = open_device("board:" + "+".join(names), 1)
    with tempfile.TemporaryDirectory() as own, open_db(Path(own) / "t.db") as store:
        with BoardRunner(device, OPTIONS, lambda text: print(text, file=sys.stderr)) as runner:
            runner._builder._pool = stand_ins  # type: ignore[assignment]
            watch = Watch()
            budget = Budget(trials=trials * len(names), preset="exhaustive")
            tune(
                TASKS,
                device,
                store,
                runner,
                TuneOptions(
                    searcher="auto", budget=budget, seed=0, progress=watch.show, only=replayed_templates.names()
                ),
            )
        searched = list(store.trials())[: len(watch.times) - len(names)]
    seconds = watch.times[len(searched) - 1] - watch.began
    keys = (t.workload.key + replayed_templates.original(t.config).key for t in searched)
    measuring = sum(min(stand_ins.seconds[key], OPTIONS.run_seconds) for key in keys)
    return {
        "boards": len(names),
        "trials": len(searched),
        "failed": sum(not t.ok for t in searched),
        "seconds": seconds,
        "trials_per_second": len(searched) / seconds,
        "busy": measuring / seconds / len(names),
        "measuring_seconds": measuring / len(searched),
        "host_cores": watch.host_cores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement, in the median")
    parser.add_argument("--trials", type=int, default=60, help="per board")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["XDG_CONFIG_HOME"] = folder
        names = [f"s{i}" for i in range(max(options.boards))]
        for name in names:
            start_board(stack, Path(folder), name)
        stand_ins = StandIns(Path(folder), open_device(f"board:{names[0]}", 1), options.seconds)
        for count in options.boards:
            row = measure(names[:count], options.trials, stand_ins)
            first = rows[0] if rows else row
            alone = first["boards"] / first["trials_per_second"]
            row["scaling"] = row["trials_per_second"] / count * alone
            alike = alone - first["measuring_seconds"] + row["measuring_seconds"]
            row["alike"] = row["trials_per_second"] / count * alike
            rows.append(row)
            print(
                f"{count:3d} boards: {row['trials_per_second']:6.2f} trials/s, {row['scaling']:.2f} of linear "
                f"({row['alike']:.2f} for trials alike), busy {row['busy']:.2f}, host "
                f"{row['host_cores']:.2f} cores; {row['trials']:.0f} trials in "
                f"{row['seconds']:.0f} s, {row['failed']:.0f} failed; load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    if options.json:
        summary = {f"scaling_{r['boards']:.0f}": r["scaling"] for r in rows}
        summary |= {f"alike_{r['boards']:.0f}": r["alike"] for r in rows}
        summary |= {f"host_cores_{r['boards']:.0f}": r["host_cores"] for r in rows}
        print(json.dumps({"summary": summary, "rows": rows, "machine": {"platform": platform.platform()}}))


if __name__ == "__main__":
    main()
