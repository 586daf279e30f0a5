"""How an operator stands to its device's limits: what it computes, what it has to move, and how fast a device does
either. Start at `bytes_of` and `roof_of`."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import te

from templates import default
from templates.epilogue import operands
from templates.operator import operator_named
from templates.workloads import anchor_of, is_anchor
from tuner.devices import Device
from tuner.report.peak import fma_peak
from tuning_db.record import Workload

_ELEMENTS = 1 << 24  # of each of the three arrays: no cache holds them
_REPEATS = 5


def bytes_of(workload: Workload) -> float | None:
    """What every kernel of a workload has to move: all that it reads and writes, once. None for an operator that is
    not known."""
    try:
        return float(_bytes_of_anchor(workload) if is_anchor(workload) else _bytes_of_operator(workload))
    except (KeyError, TypeError, ValueError):  # another version's, or a plugin's
        return None


def _bytes_of_anchor(workload: Workload) -> int:
    anchor = anchor_of(workload)
    out = prod(anchor.out_shape)
    elements = prod(anchor.data_shape) + prod(anchor.weight_shape) + out
    for token in operands(workload.epilogue):
        elements += anchor.out_shape[1] if token == "bias" else out
    return elements * np.dtype(workload.dtype).itemsize


def _bytes_of_operator(workload: Workload) -> int:
    specs = operator_named(workload.op).operands(workload)
    return sum(prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)


def roof_of(device: Device) -> dict[str, Any]:
    """The device's peak of multiply-adds and the rate of its memory, measured now, which takes seconds. Operations and
    bytes a second."""
    return {"flops": fma_peak(device), "bytes_per_second": _stream_rate(device)}


def _stream_rate(device: Device) -> float:
    """Of a sum of two arrays: bytes read and written a second, the best of a few runs."""
    a, b = (te.placeholder((_ELEMENTS,), "float32", name) for name in "ab")
    total = te.compute((_ELEMENTS,), lambda i: a[i] + b[i], name="total")
    func = default.schedule(te.create_prim_func([a, b, total]).with_attr("global_symbol", "main"), device.target)
    module = tvm.compile(func, target=device.target)
    place = device.tvm_device()
    arrays = [tvm.runtime.tensor(np.ones(_ELEMENTS, np.float32), place) for _ in range(3)]
    timed = module.mod.time_evaluator("main", place, number=1, repeat=_REPEATS)(*arrays)
    return 3.0 * 4 * _ELEMENTS / min(timed.results)
