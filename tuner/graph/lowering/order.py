"""Keep the order of a graph's calls when TVM fuses functions. Start at `keeping_order`.

TVM's FuseOps calls a fused function where the first of its parts was called, and moves before it whatever the other
parts read. Calls of one function may then come in another order than the operators of the graph, in which the profile,
the verification and the stages look for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule, Var

from tuner.graph.ir.bindings import operands
from tuner.graph.ir.simplify import is_call


def keeping_order(change: Callable[[IRModule], IRModule], module: IRModule) -> IRModule:
    """Change a module, and return it with the calls of "main" that the change left alone in their order before.

    Every other binding follows the last binding that it reads.
    """
    places = {call: i for i, call in enumerate(map(_called, _bindings(module["main"]))) if call is not None}
    module = change(module)
    main = module["main"]
    blocks = [_ordered(block, places) for block in main.body.blocks]
    module.update_func(
        module.get_global_var("main"),
        relax.Function(main.params, relax.SeqExpr(blocks, main.body.body), main.ret_ty, main.is_pure, main.attrs),
    )
    return relax.transform.Normalize()(module)  # gives the new expressions their types


def _bindings(function: relax.Function) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _called(binding: Any) -> tuple[str, str] | None:
    """Return the names of a call's result and function, which tell it from the other calls, or None for what is no call
    of a kernel. TVM may use the name of a result again for a fused function's."""
    if not is_call(binding.value, "call_tir"):
        return None
    function = binding.value.args[0]
    return (binding.var.name, function.name_hint) if isinstance(function, GlobalVar) else None


def _ordered(block: Any, places: dict[tuple[str, str], int]) -> Any:
    made: dict[Var, int] = {}
    for binding in block.bindings:
        call = _called(binding)
        own = -1 if call is None else places.get(call, -1)
        made[binding.var] = max([own, *(made.get(read, -1) for read in operands(binding.value))])
    bindings = sorted(block.bindings, key=lambda binding: made[binding.var])
    return relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)
