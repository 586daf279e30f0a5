"""This benchmark checks and measures whatever it can in a quarter of an hour with an Nvidia GPU.

    python benchmarks/on_gpu.py [--minutes 12] [--out on_gpu.json] [--device cuda:0] [--only NAME,...] [--list]
                                [--model FILE.onnx ...] [--torch-python PYTHON] [--agent-python PYTHON]
    python benchmarks/on_gpu.py --resume on_gpu.json       # the steps that have no result, or failed
    python benchmarks/on_gpu.py --dry [--device opencl:0]  # the script itself, where there is no GPU

Steps run in the order of what is least known (`--list`): checks of the templates, layers, networks, stages, vision
operators, the planner, the agent for CUDA, compute-sanitizer; then more networks and larger batches, for which
`--resume` may need a second quarter of an hour. Each is a process of its own with a limit, in proportion to --minutes,
after which it is ended and keeps the rows that it had. What a step needs and what is missing is recorded ("skipped").
Ctrl-C ends the step, and keeps what is done. Beside the results, a folder keeps what was tuned and what steps said.
--model adds networks that the zoo does not have, such as YOLOv8n and MobileViT.

The results are one JSON file: "steps" has, by name, a state (done, failed, late, interrupted or skipped), a reason, the
seconds, and the rows. The exit status is 1 if a step failed.

--dry cuts the sizes down, and compares with libraries on the CPU. Its times say nothing, and its file says "dry": such
a file is not gone on with on a GPU. So far no step has run on a GPU (conv2d_cuda.py, which the steps "layers" start,
has, on one H100): expect faults of this script first. Dry, on PoCL, these have run: machine, contract, one network
(SqueezeNet), stages, vision, vision-torch, agent (with pyopencl), sanitizer (without the tool); layers-float32 in part.
What only a GPU reaches has not run at all: rows against cuDNN, half precision and tf32, captured graphs, torch's and
onnxruntime's CUDA, TensorRT, compute-sanitizer, the agent with pycuda. Larger batches have not been tried either.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from on_gpu_steps import Row, Settings, Step, all_steps

MINUTES = 12.0  # of which the limits of steps are shares
DRY_MINUTES = 60.0  # a processor takes longer, and nothing is measured
LEAST_SECONDS = 10.0  # a step is not begun with less than this
END_SECONDS = 5.0  # that a step has after Ctrl-C before it is killed
AGAIN = ("failed", "late", "interrupted", "skipped")


def missing(needs: Sequence[str], settings: Settings) -> str | None:
    """Return why a step cannot run, or None. A dry run needs no tool, and any device serves as the GPU."""
    for need in needs:
        kind, _, name = need.partition(" ")
        if kind == "gpu" and (reason := _no_device(settings.device)) is not None:
            return reason
        if kind == "module" and find_spec(name) is None:
            return f"{name} is not installed"
        if kind == "tool" and not settings.dry and shutil.which(name) is None:
            return f"{name} is not on the path"
        if kind == "agent" and settings.agent_python is None:
            return "no Python for the agent: --agent-python names one with NumPy and pycuda, and without TVM"
    return None


@cache
def _no_device(device: str) -> str | None:
    code = f"from tuner.devices import open_device; open_device({device!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()
    return None if not done.returncode else f"{device} does not open: {said[-1] if said else done.returncode}"


@dataclass(frozen=True)
class Results:
    """The file with the results, which is written anew after every step."""

    path: Path
    found: dict[str, Any]

    @staticmethod
    def opened(path: Path, settings: Settings, resume: bool) -> Results:
        """Open the file to go on with, or begin one. Ends the script if the file is another run's."""
        if not resume:
            if path.exists():
                sys.exit(f"{path} exists: go on with it by --resume {path}, or give another --out")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            begun = {"dry": settings.dry, "device": settings.device, "begun": now, "seconds": 0.0, "steps": {}}
            return Results(path, {**begun, "platform": platform.platform(), "commit": _commit()})
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            sys.exit(f"{path}: cannot be gone on with: {error}")
        if not isinstance(found, dict) or not isinstance(found.get("steps"), dict):
            sys.exit(f"{path}: is not a file of this script")
        for key in ("dry", "device"):
            if found.get(key) != getattr(settings, key):
                sys.exit(f"{path}: was made with {key} {found.get(key)}, and this run has {getattr(settings, key)}")
        return Results(path, found)

    def wants(self, name: str) -> bool:
        step = self.found["steps"].get(name)
        return step is None or step["state"] in AGAIN

    def add(self, name: str, outcome: Mapping[str, Any]) -> None:
        """Record a step. A whole file replaces the old one at once."""
        self.found["steps"][name] = dict(outcome)
        self.found["seconds"] += outcome["seconds"]
        beside = self.path.with_name(f"{self.path.name}.new")
        beside.write_text(json.dumps(self.found, indent=1))
        os.replace(beside, self.path)


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


def run_step(step: Step, settings: Settings) -> dict[str, Any]:
    """Run a step in a process of its own and return its outcome. Its output is kept in the folder."""
    if (reason := missing(step.needs, settings)) is not None:
        return {"state": "skipped", "reason": reason, "seconds": 0.0, "rows": []}
    rows, said = (settings.place / f"{step.name}.{end}" for end in ("jsonl", "log"))
    here = Path(__file__)
    path = os.pathsep.join(filter(None, [str(here.parent.parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(here.with_name("on_gpu_steps.py")), step.to_json(), settings.to_json()]
    started = time.monotonic()
    with rows.open("w") as out, said.open("w") as log:
        env = {**os.environ, "PYTHONPATH": path}
        child = subprocess.Popen(command, stdout=out, stderr=log, env=env, start_new_session=True)
        try:
            status = child.wait(settings.seconds)
            state = "failed" if status else "done"
            reason = _last_line(said, status) if status else None
        except subprocess.TimeoutExpired:
            state, reason = "late", f"ended after {settings.seconds:.0f} seconds"
        except KeyboardInterrupt:
            state, reason = "interrupted", "Ctrl-C"
        finally:
            _end(child)
    found = _rows_of(rows)
    if found and "skipped" in found[-1] and len(found[-1]) == 1:
        state, reason = "skipped", found.pop()["skipped"]
    return {"state": state, "reason": reason, "seconds": time.monotonic() - started, "rows": found}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a step and everything that it has started and that is still in its session."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _rows_of(path: Path) -> list[Row]:
    """Return the rows that a step wrote; the last may be cut off, and what is not a row was said by a library."""
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _last_line(said: Path, status: int) -> str:
    lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
    return f"status {status}: {lines[-1][:500] if lines else 'it said nothing'}"


def run(steps: Sequence[Step], settings: Settings, results: Results, minutes: float) -> None:
    """Run steps until the time is over. A step that does not begin has no result."""
    end = time.monotonic() + 60 * minutes
    for number, step in enumerate(steps):
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            _say(f"no time for {', '.join(step.name for step in steps[number:])}: --resume {results.path}")
            return
        seconds = min(left, step.seconds * minutes / MINUTES)
        _say(f"{step.name} ({seconds:.0f} s at most): {step.about}")
        outcome = run_step(step, replace(settings, seconds=seconds))
        results.add(step.name, outcome)
        why = f": {outcome['reason']}" if outcome["reason"] else ""
        _say(f"  {outcome['state']} after {outcome['seconds']:.0f} s, {len(outcome['rows'])} rows{why}")
        if outcome["state"] == "interrupted":
            _say(f"interrupted: --resume {results.path} goes on")
            return


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="for all steps together (default: 12, in a dry run 60)")
    parser.add_argument("--out", type=Path, default=Path("on_gpu.json"), help="the file with the results")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="add to this file what it lacks, or what failed")
    parser.add_argument("--device", help="default: cuda:0, in a dry run opencl:0")
    parser.add_argument("--dry", action="store_true", help="cut all sizes down, on any device")
    parser.add_argument("--only", default="", metavar="NAME,...", help="only these steps")
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    parser.add_argument("--model", type=Path, action="append", default=[], help="another network, as an ONNX file")
    parser.add_argument(
        "--torch-python", default=sys.executable, metavar="PYTHON", help="has torch (default: this one)"
    )
    parser.add_argument("--agent-python", metavar="PYTHON", help="has NumPy and pycuda, and no TVM")
    options = parser.parse_args()
    options.minutes = options.minutes if options.minutes is not None else DRY_MINUTES if options.dry else MINUTES
    if not options.minutes > 0:
        parser.error("--minutes: must be positive")
    for model in options.model:
        if model.suffix != ".onnx" or not model.is_file():
            parser.error(f"--model {model}: is not an ONNX file")
    return options


def _chosen(only: str, steps: Mapping[str, Step]) -> list[Step]:
    names = [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in steps]:
        sys.exit(f"--only: there is no step {', '.join(unknown)} (--list names them)")
    return [step for step in steps.values() if not names or step.name in names]


def main() -> int:
    options = _options()
    models = tuple(str(model.absolute()) for model in options.model)
    steps = _chosen(options.only, all_steps(models))
    if options.list:
        for step in steps:
            print(f"{step.name:28}{step.seconds:5.0f} s  {step.about}  [{', '.join(step.needs) or 'needs nothing'}]")
        return 0
    path = (options.resume or options.out).absolute()
    folder = path.with_name(f"{path.stem}.files")
    device = options.device or ("opencl:0" if options.dry else "cuda:0")
    pythons = (options.torch_python, options.agent_python)
    settings = Settings(device, str(folder), 0.0, options.dry, *pythons)
    results = Results.opened(path, settings, options.resume is not None)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [step for step in steps if results.wants(step.name)]
    if options.dry:
        _say("a dry run: nothing that it prints is a measurement")
    try:
        run(wanted, settings, results, options.minutes)
    except KeyboardInterrupt:
        _say(f"interrupted: --resume {path} goes on")
    states = [results.found["steps"][step.name]["state"] for step in steps if step.name in results.found["steps"]]
    counted = ", ".join(f"{state} {states.count(state)}" for state in sorted(set(states)))
    _say(f"{results.found['seconds']:.0f} s in all: {counted or 'no step'}")
    return 1 if {"failed", "late"} & set(states) else 0


if __name__ == "__main__":
    sys.exit(main())
