"""Keep NaNs where values are bounded (ReLU, Clip, Max, Min), as onnxruntime does, and define what integers they become.
Start at `KeepNaNs`.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import TensorLoad
from tvm.ir.transform import PassContext, module_pass

from templates.bounds import at_least, at_most, bind, largest, smallest

_PATTERN = "op_pattern"
KEPT = "edgetune.bounds_kept"  # an attribute of functions whose bounds stay as they are
_INJECTIVE = 2  # functions with this pattern or a lower one compute each value by itself


@module_pass(opt_level=0, name="KeepNaNs")
class KeepNaNs:
    """Changes functions that compute each value by itself, as AnnotateTIROpPattern marks them. A maximum over several
    values, as of a pool, stays as it is: in onnxruntime it depends on where in the window a NaN lies.

    Numbers that are not finite become 0 where a tensor becomes one of integers. Without that, what LLVM and OpenCL make
    of them would be undefined.
    """

    def transform_module(self, module: IRModule, _context: PassContext) -> IRModule:
        """Change all functions of a module. TVM calls this."""
        for name, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc) and _is_injective(func) and KEPT not in func.attrs:
                handlers = [(tirx.Max, _larger), (tirx.Min, _smaller), (tirx.Cast, _cast)]
                body = tvm_ffi.structural_map(func.body, handlers)
                if not body.same_as(func.body):
                    module.update_func(name, func.with_body(body))
        return module


def _is_injective(func: tirx.PrimFunc) -> bool:
    return int(func.attrs.get(_PATTERN, _INJECTIVE + 1)) <= _INJECTIVE


def _larger(node: Any) -> Any:
    if not _is_float(node):
        return node
    return at_least(node.a, node.b) if isinstance(node.b, tirx.FloatImm) else largest(node.a, node.b)


def _smaller(node: Any) -> Any:
    if not _is_float(node):
        return node
    return at_most(node.a, node.b) if isinstance(node.b, tirx.FloatImm) else smallest(node.a, node.b)


def _cast(node: Any) -> Any:
    if "int" not in str(node.ty.dtype) or not isinstance(node.value, TensorLoad) or not _is_float(node.value):
        return node
    most, zero = tirx.max_value(node.value.ty.dtype), tirx.const(0, node.value.ty.dtype)
    return bind(node.value, lambda v: tirx.Cast(node.ty.dtype, tirx.Select(tirx.abs(v) <= most, v, zero)))


def _is_float(node: Any) -> bool:
    return "float" in str(node.ty.dtype)
