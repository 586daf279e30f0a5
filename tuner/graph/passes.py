"""The passes from a lowered module to one that Relax's virtual machine can run. Start at `finish` and `compile`.

TVM's own pipelines fuse and schedule again; this list leaves scheduled functions alone and schedules all others with
templates.default.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.target import Target

from templates import default
from templates.lowering import lowering_context
from tuner.errors import BadInput
from tuner.graph.host_code import touches_memory_on_host
from tuner.graph.scans import PortableScans


def finish(module: IRModule, target: Target) -> IRModule:
    """Legalise what is still an operator, fuse element-wise functions, schedule what is unscheduled.

    Raises BadInput if a function for a GPU would do a part of its work on the host.
    """
    passes = relax.transform
    fusing = [
        *([PortableScans()] if target.kind.name == "opencl" else []),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        passes.LegalizeOps(),
        passes.AnnotateTIROpPattern(),
        passes.FoldConstant(),
        passes.FuseOps(),
        passes.FuseTIR(),
        passes.RewriteDataflowReshape(),
        passes.DeadCodeElimination(["main"]),
    ]
    with target:
        module = tvm.transform.Sequential(fusing)(module)
    for name, func in module.functions.items():
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}):
            module.update_func(name, default.schedule(func, target))
    if target.kind.name != "llvm":
        _check_kernels(module, target)
    return module


def _check_kernels(module: IRModule, target: Target) -> None:
    for name, func in module.functions.items():
        if isinstance(func, tirx.PrimFunc) and touches_memory_on_host(func):
            raise BadInput(
                f"the function {name.name_hint} has a part without a kernel for {target.kind.name}, and the host "
                "cannot read the device's memory: build the network for the device cpu"
            )


def compile_module(module: IRModule, target: Target) -> Any:
    """A relax.VMExecutable of a finished module. `target`: the device's; of several devices (`lower_placed`), the host's."""
    passes = relax.transform
    # TVM plans storage without regard to devices: tensors of two of them would share it. Its pools take over then.
    several = "vdevice" in module.global_infos
    lowering = tvm.transform.Sequential(
        [
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            *([] if several else [passes.StaticPlanBlockMemory()]),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    with target, lowering_context():
        return relax.build(module, target, relax_pipeline=lowering)
