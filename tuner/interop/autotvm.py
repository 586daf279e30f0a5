"""Converts AutoTVM's tuning logs (JSON lines, version 0.2) to trials for the database. Start at `from_record`.

A record says that a kernel of one of AutoTVM's templates computed an operator, without an epilogue, in some time on the
device of its target. It becomes a trial of the template "autotvm/TASK" with AutoTVM's own knobs. That kernel can no
longer be built, and its result was never checked, so it never becomes a best. `templates.foreign` translates its tiles
for our templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from board_agent.parsing import parse_json
from templates.foreign import AUTOTVM
from templates.workloads import Conv2d, Dense
from tuning_db.errors import DatabaseError
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.rows import check_times

VERSION = 0.2
DTYPES = ("float32", "float16")

# AutoTVM's MeasureErrorNo, by number.
_FAILURES = {
    1: FailureKind.INVALID,
    2: FailureKind.COMPILE,
    3: FailureKind.COMPILE,
    4: FailureKind.RUN,
    5: FailureKind.WRONG_ANSWER,
    6: FailureKind.COMPILE_TIMEOUT,
    7: FailureKind.RUN_TIMEOUT,
    8: FailureKind.RUN,
}
# The words in a target's `-device`, its keys or its kind that name a device family. The first word that matches counts.
_FAMILIES = {
    "mali": "mali",
    "bifrost": "mali",
    "adreno": "adreno",
    "intel_graphics": "intel",
    "cuda": "nvidia",
    "cpu": "cpu",  # OpenCL on a CPU
}
_KINDS = {"llvm": "cpu", "opencl": "opencl", "cuda": "cuda"}


def from_record(data: Mapping[str, Any]) -> Trial:
    """Return the trial of a record.

    Raises DatabaseError, saying what has no counterpart here: an operator, layout, data type or processor that none of
    our workloads or devices describes, or a damaged record.
    """
    version = data.get("version", data.get("v"))
    if version != VERSION:
        raise DatabaseError(f"it is of AutoTVM's format {version}: only {VERSION} can be read (TVM 0.6 and later)")
    try:
        target, task, args, _ = data["input"]
        costs, error_no, _, timestamp = data["result"]
        knobs = {name: _knob(value) for name, _, value in data["config"]["entity"]}
        failure = None
        if error_no:
            failure = Failure(_FAILURES.get(error_no, FailureKind.RUN), f"AutoTVM's error {error_no}")
        trial = Trial(
            workload=_workload(task, args),
            device=device_of(target),
            config=Config(AUTOTVM + task, knobs),
            template_version=0,
            times=() if failure else tuple(map(float, costs)),
            failure=failure,
            versions={"tvm": data.get("tvm_version", "unknown")},
            created=datetime.fromtimestamp(timestamp, UTC),
        )
        check_times(trial)
        return trial
    except DatabaseError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError, OSError) as error:
        raise DatabaseError(f"it is a damaged record of AutoTVM: {type(error).__name__}: {error}") from error


def _knob(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Workloads


def _workload(task: str, args: Sequence[Any]) -> Workload:
    operator = task.partition(".")[0]
    for pattern, make in _OPERATORS:
        if re.fullmatch(pattern, operator):
            return make(task, args)
    raise DatabaseError(f"{task}: no operator of ours")


def _tensor(task: str, argument: Any, rank: int) -> tuple[tuple[int, ...], str]:
    """Return the shape and data type of a tensor argument."""
    kind, shape, dtype = argument
    if kind != "TENSOR" or len(shape) != rank:
        raise DatabaseError(f"{task}: a tensor of shape {shape} is in a layout of its own")
    if dtype not in DTYPES:
        raise DatabaseError(f"{task}: data of type {dtype} (known: {', '.join(DTYPES)})")
    return tuple(_size(extent) for extent in shape), dtype


def _size(value: Any, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is no size")
    return value


def _pair(value: Any, least: int = 1) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return _size(first, least), _size(second, least)


def _padding(value: Any) -> tuple[int, int, int, int]:
    if isinstance(value, list) and len(value) == 4:
        top, left, bottom, right = (_size(side, 0) for side in value)
        return top, left, bottom, right
    vertical, horizontal = _pair(value, 0)
    return vertical, horizontal, vertical, horizontal


def _conv2d(task: str, args: Sequence[Any]) -> Workload:
    """Convert a convolution. Its arguments are data (NCHW), weight (OIHW), strides, padding, dilation, then layouts,
    groups or types."""
    (batch, channels, height, width), dtype = _tensor(task, args[0], 4)
    (outputs, inputs, *kernel), _ = _tensor(task, args[1], 4)
    depthwise, groups = task.startswith("depthwise"), channels // inputs
    if depthwise:  # the weight is (channels, multiplier, height, width)
        outputs, groups = channels * inputs, channels
    conv = Conv2d(
        batch,
        channels,
        height,
        width,
        outputs,
        (kernel[0], kernel[1]),
        _pair(args[2]),
        _padding(args[3]),
        _pair(args[4]),
        groups,
    )
    weight = tuple(args[1][1])
    if weight != (conv.weight_shape if not depthwise else (channels, outputs // channels, *kernel)):
        raise DatabaseError(f"{task}: a weight of shape {list(weight)} does not fit {channels} channels")
    return conv.workload((), dtype)


def _dense(task: str, args: Sequence[Any]) -> Workload:
    """Convert a dense layer. Its arguments are data (rows, in), weight (out, in), bias or null, types."""
    (rows, inputs), dtype = _tensor(task, args[0], 2)
    (outputs, reduced), _ = _tensor(task, args[1], 2)
    if inputs != reduced:
        raise DatabaseError(f"{task}: a weight of shape {[outputs, reduced]} does not fit {inputs} features")
    epilogue = ("bias",) if len(args) > 2 and args[2] is not None else ()
    return Dense(rows, inputs, outputs).workload(epilogue, dtype)


_OPERATORS: tuple[tuple[str, Callable[[str, Sequence[Any]], Workload]], ...] = (
    (r"(group_|depthwise_)?conv2d_(nchw|NCHWc|nchwc)(_spatial_pack|_winograd(_nnpack)?)?", _conv2d),
    (r"dense(_nopack|_pack|_small_batch|_large_batch)?", _dense),
)


# Devices


def device_of(target: str) -> DeviceKey:
    """Return the device key of a target's text, "cuda -model=tx2" or JSON. Its model is the name that the log's author
    gave, or for a CPU LLVM's name. Raises DatabaseError for a kind of device for which we have no template."""
    options = _options(target)
    kind, model = options["kind"], options.get("mcpu", options.get("model", "unknown"))
    if kind not in _KINDS:
        raise DatabaseError(f"target {target!r}: no device of ours")
    marks = [options.get("device", ""), *options.get("keys", "").split(","), kind]
    family = next((_FAMILIES[mark] for mark in marks if mark in _FAMILIES), "other")
    return DeviceKey(_KINDS[kind], _cpu_family(options) if kind == "llvm" else family, model, {})


def _options(target: str) -> dict[str, str]:
    """Return a target's kind and its other options, as text."""
    if target.lstrip().startswith("{"):
        listed = parse_json(target)
        return {name: ",".join(map(str, v)) if isinstance(v, list) else str(v) for name, v in listed.items()}
    kind, *words = target.split()
    pairs = (word.lstrip("-").partition("=") for word in words)
    return {"kind": kind, **{name: value for name, _, value in pairs}}


def _cpu_family(options: Mapping[str, str]) -> str:
    """Return the family as `tuner.devices.cpu` names it, where the target says enough."""
    machine, features, cpu = options.get("mtriple", "x86_64").partition("-")[0], options.get("mattr", ""), options
    if machine in ("aarch64", "arm64"):
        return "aarch64-neon"
    if machine != "x86_64":
        return machine
    name = cpu.get("mcpu", "")
    if "avx512" in name or "+avx512f" in features or name in ("icelake-server", "cascadelake", "sapphirerapids"):
        return "x86_64-avx512"
    if "+avx2" in features or name in ("core-avx2", "haswell", "broadwell", "skylake", "znver1", "znver2", "znver3"):
        return "x86_64-avx2"
    return "x86_64"
