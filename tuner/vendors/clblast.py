"""Call CLBlast's convolutions and matrix products on an OpenCL device, in the queue that our own kernels use.

The library has no epilogues. A kernel of ours computes them after the library's, which writes to a workspace.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_size_t, c_void_p
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.stages import epilogue_operands, epilogue_value
from templates.workloads import Conv2d, Dense, anchor_of
from tuner.vendors.base import OPS, VendorTemplate
from tuning_db.record import Config, Workload

_CROSS_CORRELATION, _ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 151, 101, 111, 112
_ITEMS = 16  # work-items per group in the epilogue's kernel


class ClBlastTemplate(VendorTemplate):
    """A template that offers CLBlast as one more config of an operator."""

    first_calls = 3  # the first compiles the library's kernels

    def __init__(self, op: str) -> None:
        super().__init__("clblast", _version(), op)
        tvm_ffi.register_global_func(self.function, _compute)

    def applies(self, workload: Workload, target: Target) -> bool:
        anchor = anchor_of(workload)
        plain = not isinstance(anchor, Conv2d) or (anchor.groups == 1 and anchor.padding[:2] == anchor.padding[2:])
        return target.kind.name == "opencl" and plain

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        anchor = anchor_of(workload)
        data = te.placeholder(anchor.data_shape, name="data")
        weight = te.placeholder(anchor.weight_shape, name="weight")
        extra = epilogue_operands(workload.epilogue, anchor.out_shape)

        def call(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
            return tirx.call_packed(self.function, workload.key, *(buffer.data for buffer in (*ins, *outs)))

        sums = te.extern([anchor.out_shape], [data, weight], call, name="sums", dtype="float32")
        if not workload.epilogue:
            return te.create_prim_func([data, weight, sums]).with_attr("edgetune.calls_library", True)
        out = te.compute(
            anchor.out_shape, lambda *i: epilogue_value(workload.epilogue, sums(*i), extra, index=i), name="out"
        )
        sch = Schedule(te.create_prim_func([data, weight, *extra, out]))
        block = sch.get_sblock("out")
        groups, items = sch.split(sch.fuse(*sch.get_loops(block)), [None, _ITEMS])
        sch.bind(groups, "blockIdx.x")
        sch.bind(items, "threadIdx.x")
        return sch.mod["main"].with_attr("edgetune.calls_library", True)


def _compute(key: str, data: c_void_p, weight: c_void_p, out: c_void_p) -> None:
    """Compute the workload with that key, without its epilogue. The pointers are cl_mem. The work is enqueued, not
    awaited. Raises RuntimeError if CLBlast reports an error."""
    status = _call(key)(data, weight, out, ctypes.byref(c_void_p(_current_queue()().value)))
    if status:
        raise RuntimeError(f"CLBlast failed with status {status}")


@cache
def _call(key: str) -> Callable[..., int]:
    """Return a function of data, weight, output and a pointer to a queue, which calls the library and returns its
    status."""
    c, library, nothing = anchor_of(Workload.from_dict(json.loads(key))), _library(), c_size_t(0)
    if isinstance(c, Dense):
        sizes = [c_size_t(n) for n in (c.rows, c.out_features, c.in_features)]
        (_, out_ld, in_ld), orders = sizes, [c_int(n) for n in (_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED)]

        def multiply(data: c_void_p, weight: c_void_p, out: c_void_p, queue: Any) -> int:
            reads = c_float(1), data, nothing, in_ld, weight, nothing, in_ld, c_float(0)
            return int(library.CLBlastSgemm(*orders, *sizes, *reads, out, nothing, out_ld, queue, None))

        return multiply
    places = *c.padding[:2], *c.strides, *c.dilation
    sizes = [c_size_t(n) for n in (c.in_channels, c.height, c.width, *c.kernel, *places, c.out_channels, c.batch)]

    def convolve(data: c_void_p, weight: c_void_p, out: c_void_p, queue: Any) -> int:
        images = data, nothing, weight, nothing, out, nothing
        return int(library.CLBlastSconvgemm(c_int(_CROSS_CORRELATION), *sizes, *images, queue, None))

    return convolve


@cache
def _current_queue() -> Any:
    return tvm.get_global_func("edgetune.opencl.current_queue")


@cache
def _library() -> ctypes.CDLL:
    """Load the library. Raises ImportError where it is not here."""
    name = find_library("clblast")
    if name is None:
        raise ImportError("the library libclblast is not here")
    return ctypes.CDLL(name)


def _version() -> str:
    """Return the version, which the file that was loaded has in its name: "1.5.3"."""
    _library()
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libclblast" in line)
    return Path(next(mapped)).resolve().name.partition(".so.")[2]


TEMPLATES = tuple(ClBlastTemplate(op) for op in OPS)
