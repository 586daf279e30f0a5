"""This module has the steps of on_gpu.py that run whole networks. Start at `network`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from models_cpu import tune
from modules import compare
from on_gpu_layers import peer
from on_gpu_steps import Row, Settings
from stages import written

from templates.gpu.limits import gpu_limits_of
from tuner.devices import open_device

SEED = 0
DRY_SIZE = 64  # rows and columns of the images
# What torch computes in; tf32 is what frameworks allow for float32 on a GPU.
MODES = ("float32", "tf32", "float16")


def network(settings: Settings, name: str, batch: int) -> Iterator[Row]:
    """Tune and build a network in float32 and in half precision, and time it and the same file in other libraries.

    Our modules take their inputs from the host and return outputs there, as onnxruntime's rows "copied" do; torch's and
    onnxruntime's rows "bound" keep both on the GPU. Every row has the median milliseconds of an inference.
    """
    model, database = _model(settings, name, batch), settings.place / "networks.db"
    device, built = open_device(settings.device), {}
    for dtype in ("float32", "float16"):
        if not gpu_limits_of(device.target).stores(dtype):
            yield {"skipped_dtype": dtype, "reason": f"{device.name} does not store it"}
            continue
        common = (model, "--device", device.name, "--dtype", dtype, "--db", database)
        tune("model", *common, "--minutes", settings.minutes(0.15))
        folder = settings.place / f"{model.stem}-{dtype}"
        made = tune("build", *common, "-o", folder)
        built[dtype] = folder
        yield {"built": dtype, "says": made}
    rows = compare(list(built.values()), settings.cut(6, 1), SEED)
    for dtype, row in zip(built, rows, strict=True):
        yield {"peer": "edgetune", "mode": dtype, "batch": batch, "ms": 1e3 * row.pop("median_seconds"), **row}
    modes = MODES[: settings.cut(len(MODES), 1)]
    for mode in modes:
        yield from peer(settings, "torch", model, "--mode", mode)
    yield from peer(settings, "onnxruntime", model)
    for mode in modes:  # last, since compiling may take all the time that is left
        compiling = "default" if settings.dry else "max-autotune"
        yield from peer(settings, "torch", model, "--mode", mode, "--compiled", compiling)


def _model(settings: Settings, name: str, batch: int) -> Path:
    settings.place.mkdir(parents=True, exist_ok=True)
    if name.endswith(".onnx"):
        return Path(name)
    # Inception's pooling without padding has nothing left of an image of 64 by 64.
    dry_size = 96 if name.startswith("inception") else DRY_SIZE
    return written(name, batch, dry_size if settings.dry else None, settings.place)


def planner(settings: Settings) -> Iterator[Row]:
    """Plan a network over the GPU and the CPU, build the plan, and compare it with one where the GPU does what it can.

    A dry run takes a classifier, as a detector needs images of its own size.
    """
    name, database = "squeezenet1.0" if settings.dry else "ssd_512_mobilenet1.0", settings.place / "planner.db"
    model, devices = _model(settings, name, 1), f"{settings.device},cpu"
    planned, fallback, plan = (settings.place / f"planner.{end}" for end in ("planned", "fallback", "plan.json"))
    for device in devices.split(","):
        tune("model", model, "--device", device, "--db", database, "--minutes", settings.minutes(0.15))
    yield {"plan": tune("plan", model, "--device", devices, "--db", database, "-o", plan)}
    yield {"built": "plan", "says": tune("build", model, "--plan", plan, "--db", database, "-o", planned)}
    sent = () if settings.dry else ("--fallback", "nms")
    build = tune("build", model, "--device", devices, "--db", database, "-o", fallback, *sent)
    yield {"built": "fallback", "says": build}
    yield from compare([planned, fallback], settings.cut(6, 1), SEED)
