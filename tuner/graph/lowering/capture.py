"""Run a network as one CUDA graph, which is launched at once, where the host would otherwise launch every kernel. Start
at `with_captured`; `graph_of` makes the graph by TVM's pass.

A graph holds the addresses of its tensors. So an inference copies its inputs into tensors that persist, and its results
out of such tensors, and the graph is everything between. Streams that the network forks and joins (see tuner.stages)
become branches. Memory that a kernel would get from a pool of its thread becomes a tensor that persists, too, since the
pool gives it to others afterwards. The function that launches every kernel is kept, so that kernels can be watched.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, IRModule, Var
from tvm.s_tir import SBlockRealize
from tvm.target import Target

from templates import default
from templates.gpu.lowered import lower
from templates.rewrite import block_with
from tuner.graph.ir.bindings import renamed
from tuner.graph.lowering.concat import copied

CAPTURED = "captured"


def why_not_captured(module: IRModule, target: Target) -> str | None:
    """Return why a network cannot be captured, or None if it can."""
    if target.kind.name != "cuda":
        return f"there are no graphs on {target.kind.name}"
    for name, func in module.functions.items():
        if isinstance(func, tirx.PrimFunc) and lower(_with_workspace(func)[0], target).workspace_bytes:
            return f"{name.name_hint} allocates memory for itself"
    return None


def with_captured(module: IRModule, target: Target) -> IRModule:
    """Add to a module a function `CAPTURED`, which has the parameters of "main" and is to be captured by `graph_of`.
    The module's kernels must be called with memory as operands (see `passes.memory_as_operands`)."""
    return _Capturing(module, target).captured()


def graph_of(module: IRModule) -> IRModule:
    """Capture all of `CAPTURED` that can be captured, and leave "main" as it is. Memory has to be planned before."""
    main = module["main"]
    others = {name: func for name, func in module.functions.items() if name.name_hint != "main"}
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        captured = relax.transform.RewriteCUDAGraph()(tvm.IRModule(others, global_infos=module.global_infos))
    captured.update_func(module.get_global_var("main"), main)
    return captured


class _Capturing:
    """Builds the function `CAPTURED`."""

    def __init__(self, module: IRModule, target: Target) -> None:
        self._module, self._target = module, target
        self._builder = relax.BlockBuilder(module)
        self._copying: dict[tuple[Any, ...], GlobalVar] = {}
        # For each kernel, the variant that takes its workspaces as parameters, and these parameters.
        self._given: dict[GlobalVar, tuple[GlobalVar, list[Any]]] = {}

    def captured(self) -> IRModule:
        main = relax.utils.copy_with_new_vars(self._module["main"])
        attrs = dict(main.attrs.items()) if main.attrs else {}
        attrs.pop("global_symbol", None)
        with self._builder.function(CAPTURED, list(main.params), attrs=attrs):
            new: dict[Var, Any] = {parameter: self._copied(parameter) for parameter in main.params}
            for block in main.body.blocks:
                for binding in block.bindings:
                    new[binding.var] = self._builder.emit(self._given_workspace(renamed(binding.value, new)))
            result = self._builder.emit(renamed(main.body.body, new))
            fields = [self._builder.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields))]
            self._builder.emit_func_output(relax.Tuple([self._copied(field) for field in fields]))
        made = self._builder.get()
        for name, info in self._module.global_infos.items():
            made.update_global_info(name, info)
        return made

    def _copied(self, tensor: Var) -> Var:
        """Emit a copy of a tensor, and return the new tensor."""
        made = self._allocated(tensor.ty)
        key = (tuple(int(s) for s in tensor.ty.shape), str(tensor.ty.dtype))
        if key not in self._copying:
            copy = default.schedule(copied(*key), self._target).with_attr("target", self._target)
            self._copying[key] = self._builder.add_func(copy, "copy")
        self._builder.emit(relax.Call(self._copying[key], [tensor, made], ty_args=[relax.TupleType([])]))
        return made

    def _allocated(self, ty: Any) -> Var:
        return self._builder.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(list(ty.shape)), str(ty.dtype), 0))

    def _given_workspace(self, value: Any) -> Any:
        """Give a call of a kernel the memory that the kernel would allocate. Other values are returned unchanged."""
        function = self._module[value.op] if isinstance(value, Call) and isinstance(value.op, GlobalVar) else None
        if not isinstance(function, tirx.PrimFunc):
            return value
        if value.op not in self._given:
            given, workspaces = _with_workspace(function)
            name = self._builder.add_func(given, f"{value.op.name_hint}_given") if workspaces else value.op
            self._given[value.op] = name, workspaces
        name, workspaces = self._given[value.op]
        memory = [self._allocated(tensor.ty) for tensor in workspaces]
        return Call(name, [*value.args, *memory], value.attrs, value.ty_args)


def _with_workspace(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Any]]:
    """Return a kernel whose last parameters are the tensors that it allocates in the device's memory, and these
    parameters."""
    realize = func.body
    if not isinstance(realize, SBlockRealize):
        return func, []
    root = realize.block
    found = [tensor for tensor in root.alloc_buffers if tensor.scope() == "global"]
    if not found:
        return func, []
    block = block_with(root, alloc_buffers=[tensor for tensor in root.alloc_buffers if tensor.scope() != "global"])
    body = SBlockRealize(realize.iter_values, realize.predicate, block)
    return tirx.PrimFunc([*func.params, *found], body, func.ret_type, attrs=func.attrs), found
