"""Make parameters of the constants that a network in stages holds itself, for programs that run without TVM. Start at
`with_lifted_constants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst, IRModule, Var

from tuner.graph.ir.bindings import operands, renamed, with_leaves
from tuner.graph.lowering.placed import Placed, digest


def with_lifted_constants(placed: Placed) -> Placed:
    """Return a network in stages (see tuner.stages), which is on one device, with all constants as parameters of its
    "main". Constants that nothing reads any more, as merged kernels have their own, are left out."""
    module, inputs = placed.module, len(placed.inputs)
    main, vdevices = module["main"], module.global_infos["vdevice"]
    held: dict[bytes, tuple[np.ndarray, Var]] = {}

    def lifted(leaf: Any) -> Any:
        """Return the parameter that stands for a leaf of an expression, or the leaf if it is no constant tensor."""
        if not isinstance(leaf, GenericConst) or not isinstance(leaf.ty, relax.TensorType):
            return leaf
        array = leaf.value.numpy()
        ty = relax.TensorType(array.shape, array.dtype.name, vdevices[0])
        return held.setdefault(digest(array), (array, relax.Var(f"lifted_{len(held)}", ty)))[1]

    values = {b.var: with_leaves(b.value, lifted) for block in main.body.blocks for b in block.bindings}
    result = with_leaves(main.body.body, lifted)
    read = {leaf for value in (*values.values(), result) for leaf in operands(value) if isinstance(leaf, Var)}
    known = zip(placed.constants[0], main.params[inputs:], strict=True)
    constants = [*(pair for pair in known if pair[1] in read), *held.values()]
    parameters = [*main.params[:inputs], *(parameter for _, parameter in constants)]
    builder = relax.BlockBuilder(IRModule({g: f for g, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}))
    with builder.function("main", parameters, attrs=dict(main.attrs.items()) if main.attrs else {}):
        new: dict[Var, Any] = {parameter: parameter for parameter in parameters}
        for var, value in values.items():
            new[var] = builder.emit(renamed(value, new))
        builder.emit_func_output(renamed(result, new))
    made = builder.get()
    made.update_global_info("vdevice", vdevices)
    return replace(placed, module=made, constants=(tuple(array for array, _ in constants),))
