"""This module has the steps of on_gpu.py, which starts each in a process of its own. Start at `all_steps`.

    python benchmarks/on_gpu_steps.py STEP SETTINGS        # what on_gpu.py runs, with both as JSON

A step writes rows, each one line of JSON on standard output, so that what is known stays when the step is ended. A
step fails if one of its rows has `"ok": false`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NETWORKS = ("resnet18", "mobilenet1.0", "squeezenet1.0", "inception_v3", "resnet50_v1")
LARGER_BATCHES = (8, 16)


class Skip(Exception):
    """Raised by a step that cannot run here, with the reason."""


@dataclass(frozen=True)
class Settings:
    """Holds what a step is told. `seconds` is its limit, and `folder` keeps what it tunes. A `dry` step cuts its sizes
    down.

    `torch_python` has torch, `agent_python` has pycuda and no TVM.
    """

    device: str
    folder: str
    seconds: float
    dry: bool
    torch_python: str = sys.executable
    agent_python: str | None = None

    @property
    def place(self) -> Path:
        return Path(self.folder)

    def minutes(self, share: float) -> float:
        """Return a share of the step's time in minutes, which is next to nothing in a dry run."""
        return 0.05 if self.dry else self.seconds * share / 60

    def cut(self, whole: int, dry: int) -> int:
        return dry if self.dry else whole

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Step:
    """Describes a step: its limit in a run of twelve minutes, what it needs, and the function that yields its rows.

    Needs are "gpu", "module NAME" (of Python), "tool NAME" (on the path) and "agent" (a Python for the CUDA agent). The
    function is given as "module:name", and gets the `arguments` after the settings.
    """

    name: str
    seconds: float
    about: str
    function: str
    needs: tuple[str, ...] = ("gpu",)
    arguments: tuple[Any, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def rows(self, settings: Settings) -> Iterator[Row]:
        module, _, name = self.function.partition(":")
        call: Callable[..., Iterator[Row]] = getattr(importlib.import_module(module), name)
        return partial(call, settings)(*self.arguments)


def all_steps(models: tuple[str, ...] = ()) -> Mapping[str, Step]:
    """Return the steps by name in the order in which they run; what is least known comes first."""
    checks, layers, networks = "on_gpu_checks", "on_gpu_layers", "on_gpu_networks"
    steps = [
        Step("machine", 30, "versions, drivers, OpenCL on the GPU", f"{checks}:machine", ()),
        Step("contract", 130, "a sample of every template and dtype against float64", f"{checks}:contract"),
    ]
    steps += [
        Step(
            f"layers-{mode}", 45, f"ResNet-18's layers in {mode}, warm and cold", f"{layers}:layers", arguments=(mode,)
        )
        for mode in ("tf32", "float16", "int8", "float32")
    ]
    steps += [_network(name, 1) for name in NETWORKS[:3]]
    steps += [
        Step("stages", 60, "sequential, greedy, ours, and their graphs", f"{layers}:stages"),
        Step("vision", 50, "scan, argsort, NMS against TVM's kernels and the CPU", f"{layers}:vision"),
        Step("vision-torch", 20, "the same in torch, whose kernels are CUB's", f"{layers}:vision_torch"),
        Step("planner", 50, "a plan over the GPU and the CPU, built and checked", f"{networks}:planner"),
        Step("agent", 40, "the agent without TVM against our runtime", f"{checks}:agent", ("gpu", "agent")),
        Step(
            "sanitizer", 50, "compute-sanitizer on a sample", f"{checks}:sanitizer", ("gpu", "tool compute-sanitizer")
        ),
    ]
    steps += [_network(name, 1) for name in (*NETWORKS[3:], *models)]
    steps += [_network(name, batch) for batch in LARGER_BATCHES for name in NETWORKS]
    return {step.name: step for step in steps}


def _network(name: str, batch: int) -> Step:
    called = Path(name).stem if name.endswith(".onnx") else name
    about = f"{called} at batch {batch}: ours, torch, onnxruntime"
    after = "" if batch == 1 else f"-batch{batch}"
    return Step(f"network-{called}{after}", 60, about, "on_gpu_networks:network", arguments=(name, batch))


def main() -> int:
    step, settings = Step(**json.loads(sys.argv[1])), Settings(**json.loads(sys.argv[2]))
    wrong = 0
    try:
        for row in step.rows(settings):
            print(json.dumps(row), flush=True)
            wrong += row.get("ok") is False
    except Skip as reason:
        print(json.dumps({"skipped": str(reason)}), flush=True)
        return 0
    if wrong:
        print(f"{wrong} rows are wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    from on_gpu_steps import main as of_the_module  # whose `Skip` is the one that steps raise

    sys.exit(of_the_module())
