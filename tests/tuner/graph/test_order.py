"""Calls of kernels keep their order when TVM fuses what lies between them."""

import tvm
from tvm import relax, te
from tvm.ir import IRModule

from tuner.graph.lowering.order import keeping_order

_SHAPE = (8,)
_FUSING = tvm.transform.Sequential([relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()])


def _module() -> IRModule:
    """Return a module of three kernels on one input. The last reads an exponential that was computed first, so that
    TVM fuses a sum with it."""
    builder = relax.BlockBuilder()
    given = relax.Var("given", relax.TensorType(_SHAPE, "float32"))
    source, other = (te.placeholder(_SHAPE, name=name) for name in ("source", "other"))
    scan = te.extern([_SHAPE], [source], lambda i, o: tvm.tirx.call_packed("kernel", i[0], o[0]), dtype=["float32"])
    kernel = builder.add_func(te.create_prim_func([source, scan]).with_attr("op_pattern", 8), "kernel")
    exp = te.compute(_SHAPE, lambda i: te.exp(source[i]), name="exp")
    raised = builder.add_func(te.create_prim_func([source, exp]), "raised")
    total = te.compute(_SHAPE, lambda i: source[i] + other[i], name="total")
    added = builder.add_func(te.create_prim_func([source, other, total]), "added")
    with builder.function("main", [given]):
        with builder.dataflow():
            out = relax.TensorType(_SHAPE, "float32")
            early = builder.emit(relax.call_tir(raised, [given], out_ty=out))
            first = builder.emit(relax.call_tir(kernel, [given], out_ty=out), "first")
            second = builder.emit(relax.call_tir(kernel, [given], out_ty=out), "second")
            joined = builder.emit(relax.call_tir(added, [early, second], out_ty=out))
            result = builder.emit_output(relax.Tuple([first, joined]))
        builder.emit_func_output(result)
    return builder.get()


def _kernels(module: IRModule) -> list[str]:
    """Return the names of the kernels' results in the order of their calls."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    return [binding.var.name for binding in bindings if binding.var.name in ("first", "second")]


def test_kernels_keep_their_order() -> None:
    """The module is the case in which FuseOps alone exchanges the two calls."""
    assert _kernels(_FUSING(_module())) == ["second", "first"]
    kept = keeping_order(_FUSING, _module())
    assert _kernels(kept) == ["first", "second"]
    relax.analysis.well_formed(kept)  # raises where a value is read before it is made
    (block,) = kept["main"].body.blocks
    assert len(block.bindings) == 4, "the exponential and the sum are one call"
