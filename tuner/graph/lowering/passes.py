"""The passes that turn a lowered module into one that Relax's virtual machine can run. Start at `finish` and
`compile_module`.

TVM's own pipelines fuse and schedule again. This list leaves scheduled functions alone and schedules all others with
templates.default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.target import Target

from templates import default
from templates.gpu.limits import gpu_limits
from templates.gpu.opaque import host_accesses
from templates.lowering import PIPELINE, compiled, finished, lowering_context
from templates.template import ScheduleError
from tuner.errors import BadInput, last_line
from tuner.graph.lowering.capture import graph_of, with_captured
from tuner.graph.lowering.long_sums import LongSums
from tuner.graph.lowering.nans import KeepNaNs
from tuner.graph.lowering.order import keeping_order
from tuner.graph.lowering.quantising import ClipToIntegers
from tuner.graph.lowering.reshapes import JoinReshapes
from tuner.graph.lowering.scans import PortableScans
from tuner.graph.lowering.tables import LookUp

REMEDY = "name the CPU behind the device, as in --device opencl:0,cpu"  # helps if a GPU cannot compute an operator


def finish(module: IRModule, target: Target) -> IRModule:
    """Legalise the operators that are left, fuse element-wise functions, and schedule functions without a schedule.

    Raises BadInput if a function for a GPU would do a part of its work on the host.
    """
    passes = relax.transform
    legalizing = [
        *([PortableScans()] if target.kind.name == "opencl" else []),
        LongSums(rows=_is_cpu(target)),  # on GPUs a group of work-items shares a row out
        LookUp(target),
        JoinReshapes(),
        ClipToIntegers(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        passes.LegalizeOps(),
        passes.AnnotateTIROpPattern(),
        KeepNaNs(),
        passes.FoldConstant(),
    ]
    fusing = [
        passes.FuseOps(),
        passes.FuseTIR(),
        passes.RewriteDataflowReshape(),
        passes.DeadCodeElimination(["main"]),
    ]
    with target:
        module = keeping_order(tvm.transform.Sequential(fusing), tvm.transform.Sequential(legalizing)(module))
    for name, func in module.functions.items():
        if isinstance(func, tirx.PrimFunc):
            module.update_func(name, _scheduled(name.name_hint, func, target))
    return module


def _is_cpu(target: Target) -> bool:
    """Tell whether a target is a CPU, behind OpenCL or not."""
    limits = gpu_limits(target)
    return target.kind.name == "llvm" or (limits is not None and limits.family == "cpu")


def _scheduled(name: str, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    try:
        func = default.schedule(func, target)
    except ScheduleError as error:
        raise BadInput(f"{name} cannot run on the device: {error}; {REMEDY}") from error
    halves = any(str(getattr(p.ty, "dtype", "")) == "float16" for p in func.params)
    if halves and (limits := gpu_limits(target)) is not None and not limits.stores("float16"):
        raise BadInput(f"{name} reads or writes float16, which the device cannot store; {REMEDY}")
    meant = func.attrs is not None and "edgetune.calls_library" in func.attrs
    if target.kind.name != "llvm" and not meant and host_accesses(func.body):
        # TVM would silently compile that part for the host, where a device's memory is only a handle.
        raise BadInput(f"{name} has a part without a kernel for {target.kind.name}; {REMEDY}")
    return finished(func, target)


def memory_as_operands() -> Any:
    """Return the pass that gives calls of kernels the memory that they write to as operands."""
    passes = relax.transform
    return tvm.transform.Sequential([passes.ToNonDataflow(), passes.RemovePurityChecking(), passes.CallTIRRewrite()])


def plan_memory(module: IRModule, *instruments: Any) -> None:
    """Plan the memory of the values of a module on one device as `compile_module` does, and generate no code.
    `instruments` of TVM's watch the passes."""
    with lowering_context(*instruments):
        tvm.transform.Sequential([memory_as_operands(), relax.transform.StaticPlanBlockMemory()])(module)


def compile_module(
    module: IRModule,
    host: Target,
    devices: int,
    capture: Target | None = None,
    *,
    instruments: Sequence[Any] = (),
) -> Any:
    """Compile a module that computes on that many devices, and return the relax.VMExecutable.

    `host` is the target that code for the host is compiled for (see `placed.host_of`). If `capture` is given, the
    module also becomes a graph on the device of this target (see `capture.with_captured`). `instruments` of TVM's watch
    the passes.
    """
    passes = relax.transform
    # TVM plans storage without regard to devices: tensors of two devices would share it. TVM's pools are used then.
    plan = [passes.StaticPlanBlockMemory()] if devices == 1 else []
    with_graph = [] if capture is None else [_pass(partial(with_captured, target=capture))]
    graph = [] if capture is None else [_pass(graph_of)]
    lowering = tvm.transform.Sequential(
        [
            memory_as_operands(),
            *with_graph,
            *plan,
            *graph,
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    with host, lowering_context(*instruments):
        return relax.build(module, host, relax_pipeline=lowering, tir_pipeline=PIPELINE)


def _pass(change: Callable[[IRModule], IRModule]) -> Any:
    return tvm.transform.module_pass(lambda module, _context: change(module), opt_level=0)


def culprit(module: IRModule, error: Exception) -> str:
    """Return a line on a module that TVM failed to compile with this error: which function of it fails alone, if any
    does, and how. Finding it compiles the functions one by one."""
    said = last_line(error)
    # An error without a message is what TVM makes of an interrupt that came while it called Python.
    functions = module.functions.items() if str(error).strip() else ()
    for name, func in functions:
        if not isinstance(func, tirx.PrimFunc) or func.attrs is None or "target" not in func.attrs:
            continue
        alone = IRModule({name: func.with_attr("global_symbol", name.name_hint)})
        try:
            compiled(alone, func.attrs["target"])
        except Exception as failure:  # of any type: TVM raises many
            if last_line(failure) == said:
                kind = func.attrs["target"].kind.name
                return f"the function {name.name_hint} cannot be compiled for {kind}: {said}"
    return f"the network cannot be compiled: {said}"
