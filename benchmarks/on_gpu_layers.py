"""This module has the steps of on_gpu.py that tune and compare single kernels and stages. Start at `layers`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from conv2d_cpu import EPILOGUE, SETS, layer_name
from on_gpu_checks import STEPS
from on_gpu_steps import Row, Settings, Skip

from templates.gpu.limits import gpu_limits_of
from templates.integers import INTEGERS
from templates.template import all_templates, default_config, template_named
from tuner.devices import Device, open_device
from tuner.measure import Candidate, LocalRunner, MeasureOptions
from tuner.session import Budget, Task, TuneOptions, tune
from tuning_db.record import Config, Workload
from tuning_db.store import open_db

HERE = Path(__file__).parent
DTYPES = {"float32": "float32", "tf32": "float32", "float16": "float16", "int8": INTEGERS}
TF32 = "gpu.conv2d_tensor_core_tf32"
DRY_LAYERS = (7, 10)  # of ResNet-18: a small layer of each kernel size
TRIALS = 32  # of a layer, at most


def layers(settings: Settings, mode: str) -> Iterator[Row]:
    """Tune ResNet-18's layers in one mode, compare them with cuDNN where torch can, and time them warm and cold.

    The rows against cuDNN are those of conv2d_cuda.py. cuDNN's convolutions of 8-bit integers are not in torch.
    """
    device = open_device(settings.device)
    if not gpu_limits_of(device.target).stores(DTYPES[mode]):
        raise Skip(f"{settings.device} does not store {DTYPES[mode]}")
    folder = settings.place / "layers"
    folder.mkdir(parents=True, exist_ok=True)
    if find_spec("torch") is not None and device.name.startswith("cuda") and mode != "int8":
        arguments = ("--set", "resnet18", "--dtype", mode, "--minutes", settings.minutes(0.6), "--rounds", 5)
        yield from _script("conv2d_cuda.py", "--device", device.name, *arguments, "--keep", folder)
    else:
        yield {"skipped_peer": "cuDNN", "reason": "torch with CUDA is not here, or it has no convolution of this type"}
        _tune(settings, mode, device, folder)
    yield from _warm_and_cold(_workloads(settings, mode), mode, device, folder)


def _tolerance(mode: str) -> float | None:
    return template_named(TF32).tolerance if mode == "tf32" else None


def _workloads(settings: Settings, mode: str) -> dict[str, Workload]:
    """Return the layers by name; the epilogue of 8-bit integers quantises the results, too."""
    found = {}
    for number, conv in enumerate(SETS["resnet18"]):
        if settings.dry and number not in DRY_LAYERS:
            continue
        integers = (*(("border",) if any(conv.padding) else ()), *STEPS)
        found[layer_name(conv)] = conv.workload(integers if mode == "int8" else EPILOGUE, DTYPES[mode])
    return found


def _tune(settings: Settings, mode: str, device: Device, folder: Path) -> None:
    workloads, tolerance = _workloads(settings, mode), _tolerance(mode)
    tasks = [Task(workload, 1, name) for name, workload in workloads.items()]
    trials = len(tasks) * settings.cut(TRIALS, 2)
    budget = Budget(trials=trials, seconds=None if settings.dry else 60 * settings.minutes(0.6))
    only = None if tolerance is None else [template.name for template in all_templates()]
    with LocalRunner(device, MeasureOptions(tolerance=tolerance)) as runner, open_db(f"{folder}/{mode}.db") as store:
        tune(tasks, device, store, runner, TuneOptions(budget=budget, only=only))


def _warm_and_cold(workloads: Mapping[str, Workload], mode: str, device: Device, folder: Path) -> Iterator[Row]:
    """Time the best config of every layer with weights from main memory, and with weights that are in the caches.

    Layers that tuning had no time for have their default config.
    """
    tolerance, best, untuned = _tolerance(mode), {}, set()
    with open_db(f"{folder}/{mode}.db") as store:
        for name, workload in workloads.items():
            trial = store.best(workload, device.key, tolerance)
            if trial is None:
                untuned.add(name)
            config = trial.config if trial is not None else default_config(workload, device.target)
            if config is not None:
                best[name] = config
    times = {}
    for state, cold_bytes in (("cold", None), ("warm", 0)):
        options = MeasureOptions(tolerance=tolerance, cold_bytes=cold_bytes)
        times[state] = _timed({n: Candidate(workloads[n], config) for n, config in best.items()}, device, options)
    for name, config in best.items():
        found = {f"{state}_us": of[name] for state, of in times.items()}
        right = None not in found.values()
        yield {"layer": name, "mode": mode, "ok": right, "tuned": name not in untuned, **_shown(config), **found}


def _timed(candidates: Mapping[str, Candidate], device: Device, options: MeasureOptions) -> dict[str, float | None]:
    with LocalRunner(device, options) as runner:
        trials = list(runner.measure(list(candidates.values())))
    return {n: 1e6 * median(t.times) if t.times else None for n, t in zip(candidates, trials, strict=True)}


def _shown(config: Config) -> Row:
    return {"template": config.template, "config": dict(config.knobs)}


def _script(name: str, *arguments: Any) -> Iterator[Row]:
    """Run another benchmark and yield its rows, then its summary. A status other than 0 makes a wrong row."""
    command = [sys.executable, str(HERE / name), *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.stdout.strip():
        found = json.loads(done.stdout.strip().splitlines()[-1])
        yield from found["rows"]
        yield {"summary": found["summary"]}
    if done.returncode:
        yield {"ok": False, "failure": f"{name} ended with status {done.returncode}"}


def stages(settings: Settings) -> Iterator[Row]:
    """Compare sequential kernels, greedy stages and ours, and what of them can be captured as a graph (stages.py)."""
    models = ("squeezenet1.0",) if settings.dry else ("squeezenet1.0", "inception_v3")
    search = 0.02 if settings.dry else settings.minutes(0.25)
    size = ("--size", 64) if settings.dry else ()
    for model in models:
        yield from _script(
            "stages.py",
            *("--device", settings.device, "--models", model, *size, "--folder", settings.place / "stages"),
            *("--search-minutes", search, "--schedules", settings.cut(20, 4), "--turns", settings.cut(4, 2)),
            *("--rounds", settings.cut(15, 3)),
        )


def vision(settings: Settings) -> Iterator[Row]:
    """Compare operators without a weight with libraries on the CPU, then with TVM's kernels as well (vision.py).

    TVM's scan ends the process with PoCL's driver, so that a dry run leaves it out.
    """
    settings.place.mkdir(parents=True, exist_ok=True)
    tuning = ("--trials", settings.cut(8, 1), "--rounds", settings.cut(20, 2), "--db", settings.place / "vision.db")
    yield from _script("vision.py", "--device", settings.device, *tuning, "--no-topi")
    if not settings.dry:
        yield from _script("vision.py", "--device", settings.device, *tuning)


def vision_torch(settings: Settings) -> Iterator[Row]:
    """Time the same sorts, sums and suppression in torch and torchvision on the GPU."""
    yield from peer(settings, "vision")


def peer(settings: Settings, *arguments: Any) -> Iterator[Row]:
    """Yield what on_gpu_peers.py prints, which runs in the Python that has torch."""
    device = settings.device if settings.device.startswith("cuda") else "cpu"
    command = [settings.torch_python, str(HERE / "on_gpu_peers.py"), *map(str, arguments), "--device", device]
    done = subprocess.run(
        [*command, "--rounds", str(settings.cut(30, 2))], stdout=subprocess.PIPE, text=True, check=False
    )
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    if done.returncode:
        yield {"ok": False, "failure": f"{arguments[0]} in another library ended with status {done.returncode}"}
