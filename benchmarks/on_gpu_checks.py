"""This module has the steps of on_gpu.py that check. Start at `contract`."""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from zlib import crc32

from on_gpu_steps import Row, Settings

import vision_ops
from templates.attention import Attention
from templates.batch_matmul import BatchMatmul
from templates.integers import INTEGERS
from templates.template import Template, all_templates
from templates.workloads import Conv2d, Dense
from tuner.devices import Device, list_devices, open_device
from tuner.measure import Candidate, LocalRunner, MeasureOptions
from tuning_db.record import Trial, Workload
from vision_ops.argsort import Argsort
from vision_ops.compact import Compact
from vision_ops.multibox_decode import MultiboxDecode
from vision_ops.multibox_prior import MultiboxPrior
from vision_ops.nms import Nms
from vision_ops.proposal import Proposal
from vision_ops.recurrent_layer import Recurrent
from vision_ops.resize import Resize
from vision_ops.roi_align import RoiAlign
from vision_ops.roi_pool import RoiPool
from vision_ops.scan import Scan
from vision_ops.yolo import YoloDecode

assert vision_ops is not None  # imported for the operators that it registers
SAME3 = (1, 1, 1, 1)
STEPS = ("offset", "real", "scale", "relu", "quantize")  # the epilogue of a layer whose results are 8-bit integers
SAMPLED = ("gpu.conv2d_direct", "gpu.attention_running", "gpu.dense", "vision.argsort", "vision.nms")
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9")

ANCHORS = {
    "conv3x3": (Conv2d(1, 64, 28, 28, 64, (3, 3), padding=SAME3), ("bias", "relu")),
    "conv3x3 odd": (Conv2d(1, 24, 13, 9, 40, (3, 3), padding=(0, 1, 2, 1)), ("bias", "add", "relu")),
    "conv1x1 strided": (Conv2d(1, 32, 14, 14, 64, (1, 1), (2, 2)), ("bias",)),
    "first layer": (Conv2d(1, 3, 30, 26, 32, (7, 7), (2, 2), (3, 3, 3, 3)), ("bias", "relu")),
    "grouped": (Conv2d(1, 32, 9, 9, 64, (3, 3), padding=SAME3, groups=2), ("bias",)),
    "depthwise": (Conv2d(2, 24, 15, 9, 24, (5, 3), (2, 1), (2, 1, 2, 1), groups=24), ("bias",)),
    "dense": (Dense(1, 512, 1000), ("bias",)),
    "dense rows": (Dense(5, 33, 30), ("bias", "add", "relu")),
}
OPERATORS = {
    "attention": Attention(1, 12, 197, 197, 64, 64, scale=0.125),
    "attention odd": Attention(2, 3, 29, 37, 20, 23, scale=0.2),
    "batch_matmul": BatchMatmul(2, 32, 64, 48),
    "batch_matmul odd": BatchMatmul(3, 29, 37, 53),
    "scan": Scan(2, 5000, 3),
    "argsort": Argsort(2, 3000, 3000),
    "top k": Argsort(20, 2000, 100, descending=True),
    "compact": Compact(3, 4001, 0.25),
    "nms": Nms(2, 5, 600, 400, 100, 0.45, score=0.2, centre=True),
    "roi align": RoiAlign(2, 20, 25, 30, 9, 7, 5, 0.25),
    "roi pool": RoiPool(2, 20, 25, 30, 9, 7, 5, 0.25),
    "multibox prior": MultiboxPrior(19, 13, 6),
    "multibox decode": MultiboxDecode(2, 21, 1001),
    "yolo decode": YoloDecode(2, 3, 20, 13, 11, 32.0),
    "proposal": Proposal(2, 9, 25, 19, 16.0, 16.0, 400.0, 304.0, 4.0),
    "resize": Resize(20, 13, 17, 1, 26, 29),
    "lstm": Recurrent(7, 2, 64, 2),
    "gru": Recurrent(6, 3, 32, 2, "gru"),
}


def machine(settings: Settings) -> Iterator[Row]:
    """Say what is installed, which devices there are, and whether an OpenCL driver offers the GPU as well."""
    versions = {}
    for name in ("apache-tvm", "torch", "torchvision", "onnxruntime", "onnxruntime-gpu", "tensorrt", "pycuda"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    yield {"platform": platform.platform(), "cores": len(os.sched_getaffinity(0)), "versions": versions}
    for command in (["nvidia-smi"], ["nvcc", "--version"], ["compute-sanitizer", "--version"]):
        yield {"command": " ".join(command), "said": _said(command)}
    icds = {str(path): path.read_text().strip() for path in sorted(Path("/etc/OpenCL/vendors").glob("*.icd"))}
    libraries = {name: ctypes.util.find_library(name) for name in ("OpenCL", "nvidia-opencl")}
    found = [device.key.as_dict() for device in list_devices() if device.name.startswith("opencl")]
    yield {"opencl": found, "icds": icds, "libraries": libraries}
    yield {"device": settings.device, "key": open_device(settings.device).key.as_dict()}


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.strip() or done.stderr.strip()


def contract(settings: Settings) -> Iterator[Row]:
    """Compare a seed and a random config of every template that applies to the device with float64, in every dtype.

    In a dry run each template and dtype has one workload.
    """
    device = open_device(settings.device)
    chosen = list(_candidates(device, all_templates(), settings.cut(4, 1)))
    applying = {template.name for _, template, _ in chosen}
    yield {"without_a_workload_here": [t.name for t in all_templates() if t.name not in applying]}
    yield from _checked(device, chosen, MeasureOptions(), 0.85 * settings.seconds)


def _workloads(dtype: str) -> dict[str, Workload]:
    found = {}
    for name, (anchor, epilogue) in ANCHORS.items():
        integers = ("border", *STEPS) if isinstance(anchor, Conv2d) and any(anchor.padding) else STEPS
        found[name] = anchor.workload(integers if dtype == INTEGERS else epilogue, dtype)
    found |= {name: view.workload(dtype) for name, view in OPERATORS.items()}
    return found


def _candidates(device: Device, templates: Iterable[Template], most: int) -> Iterator[tuple[str, Template, Candidate]]:
    """Yield, for each template and dtype, the first seed and a random config of the first `most` workloads that it
    applies to. Templates follow each other workload by workload, so that a limit leaves none of them out."""
    found: list[list[tuple[str, Template, Candidate]]] = [[] for _ in range(most)]
    for template in templates:
        for dtype in template.dtypes:
            used = 0
            for name, workload in _workloads(dtype).items():
                fits = used < most and workload.op == template.op
                if not fits or (space := template.space(workload, device.target)) is None:
                    continue
                rng = random.Random(crc32(f"{template.name} {name} {dtype}".encode()))
                configs = dict.fromkeys([space.seed_configs()[0], space.sample(rng)])
                found[used] += [(name, template, Candidate(workload, c)) for c in configs if c is not None]
                used += 1
    for candidates in found:
        yield from candidates


def _checked(
    device: Device, chosen: Sequence[tuple[str, Template, Candidate]], options: MeasureOptions, seconds: float
) -> Iterator[Row]:
    """Measure candidates and yield a row each, until `seconds` have passed. Templates with a tolerance of their own
    come first, and are judged by it."""
    end = time.monotonic() + seconds
    for tolerance in sorted({template.tolerance for _, template, _ in chosen}, key=lambda value: value is None):
        mine = [(name, candidate) for name, template, candidate in chosen if template.tolerance == tolerance]
        with LocalRunner(device, replace(options, tolerance=tolerance)) as runner:
            trials = runner.measure([candidate for _, candidate in mine])
            for number, ((name, candidate), trial) in enumerate(zip(mine, trials, strict=True), 1):
                yield _row(name, candidate, trial)
                if time.monotonic() > end:
                    yield {"not_checked_for_lack_of_time": len(mine) - number}
                    break


def _row(name: str, candidate: Candidate, trial: Trial) -> Row:
    failure = trial.failure
    return {
        "template": candidate.config.template,
        "dtype": candidate.workload.dtype,
        "workload": name,
        "config": dict(candidate.config.knobs),
        "ok": failure is None,
        "error": trial.error,
        "us": 1e6 * median(trial.times) if trial.times else None,
        "failure": None if failure is None else f"{failure.kind}: {failure.message}"[:600],
    }


def sample(settings: Settings) -> Iterator[Row]:
    """Check a few templates with long deadlines, for a tool that makes kernels slow."""
    device, options = open_device(settings.device), MeasureOptions(run_seconds=120.0, builders=1)
    templates = [template for template in all_templates() if template.name in SAMPLED]
    yield from _checked(device, list(_candidates(device, templates, 1)), options, 0.7 * settings.seconds)


def sanitizer(settings: Settings) -> Iterator[Row]:
    """Run `sample` under compute-sanitizer. A dry run has no kernels that it sees, and runs the sample alone."""
    code = (
        "import json, sys; from on_gpu_checks import sample; from on_gpu_steps import Settings\n"
        "for row in sample(Settings(**json.loads(sys.argv[1]))): print(json.dumps(row), flush=True)"
    )
    command = [*(() if settings.dry else SANITIZER), sys.executable, "-c", code, settings.to_json()]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    said = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
        else:
            said.append(line)
    yield {
        "ok": done.returncode == 0,
        "status": done.returncode,
        "said": "\n".join(said)[-4000:] or done.stderr[-4000:],
    }


def agent(settings: Settings) -> Iterator[Row]:
    """Compare the agent that knows no TVM with our own runtime on the same device (thin_agent.py)."""
    script = Path(__file__).with_name("thin_agent.py")
    command = [sys.executable, str(script), "--python", str(settings.agent_python), "--device", settings.device]
    done = subprocess.run([*command, "--rounds", "1", "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        yield {"ok": False, "status": done.returncode}
        return
    yield from json.loads(done.stdout)["rows"]
