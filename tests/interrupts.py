"""Interrupts of real commands at random moments: `python -m tests.interrupts [--count 200] [--seed N]`.

Each command is started in a session of its own and gets what Ctrl-C gives to all of it, some after one of its processes
was stopped. It must end with status 130, or 0 where it had ended already, within five seconds, show no traceback and
leave no process; its database must be whole.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.tuner.tiny_network import write_tiny_network
from tuning_db.maintain import verify
from tuning_db.store import open_db

TUNE = Path(sys.executable).with_name("tune")
LONGEST_SECONDS = 5.0  # from the interrupt to the end
COMMANDS = {
    "model": ("model", "tiny.onnx", "--trials", 64, "--threads", 1, "--db", "t.db"),
    "build": ("build", "tiny.onnx", "--threads", 1, "--db", "t.db", "-o", "again"),
    "run": ("run", "built"),
    "bench": ("bench", "built", "--against", "ort", "--rounds", 3),
    "report": ("report", "--db", "t.db", "-o", "page.html"),
    "plan": ("plan", "tiny.onnx", "--device", "cpu", "--threads", 1, "--db", "t.db", "-o", "p.plan"),
}


def prepare(folder: Path) -> dict[str, float]:
    """Make a network, a database and a built module; the seconds that each command takes."""
    write_tiny_network(folder / "tiny.onnx")
    first = ("model", "tiny.onnx", "--trials", 8, "--threads", 1, "--db", "t.db")
    build = ("build", "tiny.onnx", "--threads", 1, "--db", "t.db", "-o", "built")
    for words in (first, build):
        subprocess.run([TUNE, *map(str, words)], cwd=folder, check=True, capture_output=True)
    seconds = {}
    for name, words in COMMANDS.items():
        began = time.monotonic()
        done = subprocess.run([TUNE, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stderr)
        seconds[name] = time.monotonic() - began
    return seconds


def interrupt(name: str, folder: Path, seconds: float, rng: random.Random) -> str | None:
    """Interrupt a command; what was wrong with how it ended, None if nothing was."""
    delay, stops = rng.uniform(0.1, seconds), rng.random() < 0.2
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [TUNE, *map(str, COMMANDS[name])],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        time.sleep(delay)
        below = _below(process.pid)
        if stops and below:
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(below).suspend()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        began = time.monotonic()
        try:
            status = process.wait(60)
        except subprocess.TimeoutExpired:
            status = None
        took = time.monotonic() - began
        _, alive = psutil.wait_procs([*below, *_of_session(process.pid)], timeout=LONGEST_SECONDS)
        for left in alive:
            left.kill()
        process.kill()
        said.seek(0)
        text = said.read()
    where = f"{name} after {delay:.2f} s{', one of its processes stopped' if stops else ''}"
    if status not in (0, 130):
        return f"{where}: status {status}: {text[-300:]}"
    if "Traceback" in text or "Exception ignored" in text:
        return f"{where}: {text[-2000:]}"
    if took > LONGEST_SECONDS:
        return f"{where}: ended after {took:.1f} s"
    if alive:
        return f"{where}: left {[p.pid for p in alive]}"
    with open_db(folder / "t.db") as store:
        problems = list(verify(store))
    return f"{where}: {problems}" if problems else None


def _below(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _of_session(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def problems_of(count: int, seed: int) -> list[str]:
    """Interrupt commands so often; return what was wrong with how they ended."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="interrupts-") as name:
        folder = Path(name)
        seconds = prepare(folder)
        found = []
        for number in range(count):
            command = sorted(COMMANDS)[number % len(COMMANDS)]
            problem = interrupt(command, folder, seconds[command], rng)
            if problem is not None:
                print(problem, flush=True)
                found.append(problem)
    return found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = problems_of(args.count, args.seed)
    print(f"{args.count} interrupts, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
