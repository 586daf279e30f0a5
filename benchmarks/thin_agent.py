"""This benchmark compares times measured by an agent without TVM with those of our own OpenCL runtime, on one device.

    python benchmarks/thin_agent.py --python PYTHON [--device opencl:0] [--rounds 5] [--json]

PYTHON is an interpreter that has NumPy and pyopencl (for cuda:N pycuda) but no TVM. The agent runs in it as on a board,
with real pairing, TLS and sandbox. Both measure the seed configs of the templates in turn, in every round. The
benchmark prints both medians and their ratio, how far the rounds of each differ among themselves, and whether both
computed the same error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median

from templates.template import search_space
from templates.workloads import Conv2d, Dense
from tuner.devices import open_device
from tuner.devices.board import Boards, Pairing
from tuner.measure import Candidate, LocalRunner, MeasureOptions, open_runner
from tuner.measure.runner import Runner
from vision_ops.argsort import Argsort

BOARD = "board:thin"
WORKLOADS = {
    "conv 3x3, 64x56x56": Conv2d(1, 64, 56, 56, 64, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu")),
    "conv 1x1, 256x14x14": Conv2d(1, 256, 14, 14, 256, (1, 1)).workload(("bias", "relu")),
    "depthwise 3x3, 144x28x28": Conv2d(1, 144, 28, 28, 144, (3, 3), padding=(1, 1, 1, 1), groups=144).workload(),
    "dense 1x1024x1000": Dense(1, 1024, 1000).workload(("bias",)),
    "argsort 3x10000": Argsort(3, 10_000, 10_000).workload(),
}


def start_agent(python: str, folder: Path) -> subprocess.Popen[str]:
    """Start an agent and pair with it. Return when it listens."""
    with Pairing(Boards(), "thin", "127.0.0.1") as pairing:
        command = [python, "-W", "ignore", "-m", "board_agent.serve", "--port", "0", "--pair", str(pairing.code)]
        agent = subprocess.Popen([*command, "--folder", str(folder)], stdout=subprocess.PIPE, text=True)
        waiting = threading.Thread(target=lambda: pairing.wait(1))
        waiting.start()
        waiting.join()
    assert agent.stdout is not None
    port = next(int(line.rpartition(":")[2]) for line in agent.stdout if line.startswith("listening on"))
    board = Boards()["thin"]
    Boards().add("thin", board.address, port, board.pairing, board.ours.read_bytes(), board.theirs.read_bytes())
    return agent


def measure(there: Runner, here: Runner, candidates: list[Candidate], rounds: int) -> list[dict[str, object]]:
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in candidates]
    same = [True] * len(candidates)
    for _ in range(rounds):
        for place, pair in enumerate(zip(there.measure(candidates), here.measure(candidates), strict=True)):
            for trial, found in zip(pair, times[place], strict=True):
                if trial.failure is not None:
                    raise SystemExit(f"{trial.config.template}: {trial.failure.message}")
                found.append(median(trial.times))
            same[place] &= pair[0].error == pair[1].error
    return [
        {
            "template": candidate.config.template,
            "thin_us": 1e6 * median(thin),
            "own_us": 1e6 * median(own),
            "ratio": median(thin) / median(own),
            "apart": [max(values) / min(values) for values in (thin, own)],
            "same_error": equal,
        }
        for candidate, (thin, own), equal in zip(candidates, times, same, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o711)
        os.environ["XDG_CONFIG_HOME"] = scratch
        agent = start_agent(given.python, Path(scratch) / "agent")
        try:
            device, own = open_device(f"{BOARD}/{given.device}"), open_device(given.device)
            if device.key != own.key:
                raise SystemExit(f"{given.device} is {own.key.model}, and the board's first device {device.key.model}")
            rows = []
            with open_runner(device, MeasureOptions()) as there, LocalRunner(own, MeasureOptions()) as here:
                for name, workload in WORKLOADS.items():
                    space = search_space(workload, device.target)
                    assert space is not None
                    candidates = [Candidate(workload, config) for config in space.seed_configs()[:6]]
                    rows += [{"workload": name, **row} for row in measure(there, here, candidates, given.rounds)]
                    print(f"{name}: done", file=sys.stderr)
        finally:
            agent.terminate()
            agent.wait()
    if given.json:
        print(json.dumps({"device": own.key.model, "rounds": given.rounds, "rows": rows}))
        return
    for row in rows:
        thin, mine = row["apart"]
        print(
            f"{row['workload']:26}{row['template']:28}{row['thin_us']:10.1f}{row['own_us']:10.1f} us {row['ratio']:.3f}"
            f"  rounds apart {thin:.2f} {mine:.2f}  {'same error' if row['same_error'] else 'ERRORS DIFFER'}"
        )
    print(f"median ratio {median(row['ratio'] for row in rows):.3f}; {own.key.model}, {given.rounds} rounds")


if __name__ == "__main__":
    main()
