"""The passes from a lowered module to one that Relax's virtual machine can run. Start at `finish` and `compile`.

TVM's own pipeline for CPUs fuses and schedules again; this list leaves scheduled functions alone and schedules all
others with templates.default.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.target import Target

from templates import default
from templates.lowering import lowering_context


def finish(module: IRModule, target: Target) -> IRModule:
    """Legalise what is still an operator, fuse element-wise functions, schedule what is unscheduled."""
    passes = relax.transform
    fusing = [
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
    return module


def compile_module(module: IRModule, target: Target) -> Any:
    """A relax.VMExecutable of a finished module."""
    passes = relax.transform
    lowering = tvm.transform.Sequential(
        [
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
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
