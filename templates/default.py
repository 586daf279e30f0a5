"""The default schedule, for functions that no template computes: nothing in a network runs unscheduled.

Start at `schedule`.
"""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from templates.blocks import is_scheduled
from templates.cpu import default as cpu
from templates.cpu.isa import vector_unit
from templates.divisions import with_opaque_divisions
from templates.gpu import default as gpu
from templates.gpu.limits import gpu_limits


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return a parallel and vectorised version of a function for a target (llvm, OpenCL or CUDA), marked as scheduled.

    A function that is already marked as scheduled is returned unchanged. Raises ScheduleError if the function cannot
    run on a GPU because it calls functions of the host.
    """
    if is_scheduled(func):
        return func
    limits = gpu_limits(target)
    if limits is None:
        return with_opaque_divisions(cpu.schedule(func, vector_unit(target).lanes))
    if limits.family == "cpu" and gpu.is_of_vectors(func):
        # TVM writes a shuffle's operands out for every lane, and shuffles of shuffles as megabytes of text.
        lanes = min(limits.lanes, limits.max_vector)
        return with_opaque_divisions(gpu.of_loops(cpu.schedule(func, lanes, shuffles=False), limits))
    return with_opaque_divisions(gpu.schedule(func, limits))
