"""This benchmark measures how long commands say nothing on a terminal of 80 columns.

    python benchmarks/silence.py MODEL.onnx [--device cpu] [--json FILE]

It runs the commands that work for long, one after the other in an empty folder, each in a terminal of its own. For
each it prints its seconds, the longest time between two changes of what is shown, and the last words before that.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def commands(model: Path, device: str) -> dict[str, list[str]]:
    """Return the commands by the name that the table gives them, in an order that each finds what it needs."""
    one = ["--device", device]
    return {
        "doctor": ["doctor"],
        "model": ["model", str(model), "--minutes", "0.5", *one],
        "build": ["build", str(model), "-o", "net.tuned", *one],
        "plan": ["plan", str(model), "-o", "net.plan.json", *one],
        "build --plan": ["build", str(model), "--plan", "net.plan.json", "-o", "net.planned", *one],
        "build --stages": ["build", str(model), "--stages", "auto", "--stage-minutes", "0.5", "-o", "net.stages", *one],
        "build --fallback": ["build", str(model), "--device", "opencl:0,cpu", "-o", "net.both"],
        "bench": ["bench", "net.tuned", "--against", "ort", "--rounds", "2"],
        "export": ["export", "net.tuned", "-o", "net.export"],
        "report": ["report", "-o", "report.html"],
    }


def gaps(arguments: list[str], folder: Path) -> tuple[float, float, str, int]:
    """Run `tune` with the arguments in a terminal. Return its seconds, the longest silence in seconds, the last words
    before it, and its exit status."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-m", "tuner", *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    begun = last = time.monotonic()
    longest, before, said = 0.0, "the start", "the start"
    while True:
        ready, _, _ = select.select([terminal], [], [], 60)
        try:
            text = os.read(terminal, 1 << 16).decode(errors="replace") if ready else ""
        except OSError:  # the child closed its end
            text = ""
        now = time.monotonic()
        if now - last > longest:
            longest, before = now - last, said
        last = now
        if not text and ready:
            break
        words = [line.strip() for line in _ESCAPE.sub("\n", text).splitlines() if line.strip()]
        said = words[-1] if words else said
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return time.monotonic() - begun, longest, before, os.waitstatus_to_exitcode(status)


def main() -> None:
    """Run the commands that the command line asks for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="commands, separated by commas")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = {}
    print("| command | seconds | longest silence | behind | exit status |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in commands(asked.model.resolve(), asked.device).items():
            if not asked.only or name in asked.only.split(","):
                seconds, longest, before, status = gaps(arguments, Path(folder))
                found[name] = {"seconds": seconds, "silence": longest, "behind": before, "status": status}
                print(f"| {name} | {seconds:.0f} | {longest:.1f} s | {before[:60]} | {status} |", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
