"""Functions as networks have them: Relax operators, legalised and fused, with inputs for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import IRModule
from tvm.relax import op as R

Make = Callable[..., Any]


def _norm(x: Any) -> Any:
    ones = relax.const(np.linspace(0.5, 1.5, 96, dtype=np.float32))
    return R.nn.layer_norm(x, ones, ones, axes=[-1])


# name: (shapes of the inputs, "i" after the shape for indices below 3; the operators)
NETWORK_OPERATORS: dict[str, tuple[list[tuple[Any, ...]], Make]] = {
    "softmax": ([(1, 1000)], lambda x: R.nn.softmax(x)),
    "softmax_rows": ([(8, 12, 50)], lambda x: R.nn.softmax(x)),
    "softmax_channels": ([(1, 21, 30, 30)], lambda x: R.nn.softmax(x, axis=1)),
    "log_softmax": ([(2, 100)], lambda x: R.nn.log_softmax(x)),
    "max_pool": ([(1, 16, 33, 32)], lambda x: R.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))),
    "average_pool": ([(1, 8, 35, 35)], lambda x: R.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1))),
    "adaptive_pool": ([(1, 24, 14, 14)], lambda x: R.nn.adaptive_avg_pool2d(x, (7, 7))),
    "mean_of_images": ([(1, 64, 7, 7)], lambda x: R.mean(x, [2, 3], keepdims=True)),
    "mean_of_all": ([(1, 16, 40, 40)], lambda x: R.mean(x)),
    "sum_of_rows": ([(3, 2000)], lambda x: R.sum(x, [1])),
    "sum_of_columns": ([(40, 300)], lambda x: R.sum(x, [0])),
    "concat": ([(1, 12, 13, 13), (1, 7, 13, 13)], lambda x, y: R.concat([x, y], 1)),
    "transpose": ([(1, 16, 12, 20)], lambda x: R.permute_dims(x, (0, 2, 3, 1))),
    "reshape_relu": ([(2, 6, 4)], lambda x: R.nn.relu(R.reshape(x, (4, 12)))),
    "pad": ([(1, 5, 9, 9)], lambda x: R.nn.pad(x, (0, 0, 0, 0, 1, 2, 3, 1))),
    "resize_nearest": ([(1, 16, 7, 9)], lambda x: R.image.resize2d(x, (14, 18), method="nearest_neighbor")),
    "resize_linear": ([(1, 16, 7, 9)], lambda x: R.image.resize2d(x, (15, 17), method="linear")),
    "take": ([(10, 33), (4, "i")], lambda x, i: R.take(x, i, axis=0)),
    "gather_elements": ([(5, 8), (5, 4, "i")], lambda x, i: R.gather_elements(x, i, axis=1)),
    "argmax": ([(4, 1000)], lambda x: R.argmax(x, 1)),
    "argmax_few": ([(64, 10, 10)], lambda x: R.argmax(x, 1)),
    "layer_norm": ([(1, 20, 96)], _norm),
    "gelu": ([(1, 30, 64)], lambda x: R.nn.gelu(x)),
    "compare": ([(4, 16), (4, 16)], lambda x, y: R.where(R.greater(x, y), x, R.negative(y))),
    "between": (
        [(4, 16), (4, 16)],
        lambda x, y: R.where(R.logical_and(R.greater(x, y), R.greater(x, relax.const(0.0))), x, y),
    ),
    "strided_slice": ([(1, 32, 14, 14)], lambda x: R.strided_slice(x, [2, 3], [0, 1], [14, 14], [2, 2])),
    "one_hot_like": ([(7, "i")], lambda i: R.astype(R.multiply(i, relax.const(3, "int64")), "float32")),
    "matmul": ([(3, 40, 24), (3, 24, 56)], lambda x, y: R.matmul(x, y)),
    "conv2d": ([(1, 6, 15, 15), (10, 6, 3, 3)], lambda x, w: R.nn.relu(R.nn.conv2d(x, w, padding=(1, 1)))),
    "conv2d_transpose": (
        [(1, 6, 9, 9), (6, 4, 4, 4)],
        lambda x, w: R.nn.conv2d_transpose(x, w, strides=(2, 2), padding=(1, 1)),
    ),
    "instance_norm": (
        [(1, 8, 16, 16)],
        lambda x: R.divide(R.subtract(x, R.mean(x, [2, 3], True)), R.std(x, [2, 3], True)),
    ),
    "prelu": ([(1, 8, 6, 6), (8,)], lambda x, a: R.nn.prelu(x, a, axis=1)),
    "split": ([(1, 12, 8, 8)], lambda x: R.add(*[R.split(x, 2, 1)[i] for i in (0, 1)])),
    "tile": ([(3, 5)], lambda x: R.tile(x, (2, 3))),
    "power": ([(3, 50)], lambda x: R.sqrt(R.power(R.abs(x), relax.const(1.5, "float32")))),
}


def legalised(name: str) -> list[tirx.PrimFunc]:
    """The unscheduled functions of one of NETWORK_OPERATORS, as `tuner.graph.lowering.passes` would meet them."""
    shapes, make = NETWORK_OPERATORS[name]
    builder = relax.BlockBuilder()
    variables = []
    for i, shape in enumerate(shapes):
        indices = shape[-1] == "i"
        ty = relax.TensorType(shape[:-1] if indices else shape, "int64" if indices else "float32")
        variables.append(relax.Var(f"x{i}", ty))
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*variables)))
        builder.emit_func_output(result)
    passes = relax.transform
    fusing = [passes.DecomposeOpsForInference(), passes.LegalizeOps(), passes.AnnotateTIROpPattern()]
    fusing += [passes.FoldConstant(), passes.FuseOps(), passes.FuseTIR(), passes.DeadCodeElimination(["main"])]
    module: IRModule = tvm.transform.Sequential(fusing)(builder.get())
    return [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]


def _extern(shape: tuple[int, ...], compute: Callable[..., Any]) -> Callable[[], tirx.PrimFunc]:
    x = te.placeholder(shape, name="x")
    return lambda: te.create_prim_func([x, compute(x)])


HAND_WRITTEN: dict[str, Callable[[], tirx.PrimFunc]] = {
    "cumsum": _extern((8, 40), lambda x: topi.cumsum(x, 1)),
    "cumsum_flat": _extern((100,), lambda x: topi.cumsum(x)),
    "scalar": _extern((), lambda x: te.compute((), lambda: x() + tirx.const(1.0, "float32"))),
    "scatter": _extern((6, 5), lambda x: topi.scatter_elements(x, topi.cast(topi.abs(x), "int64"), x, 1, "update")),
    "select_rows": _extern(
        (5, 16), lambda x: te.compute((5, 16), lambda i, j: tirx.Select(i < 2, x[i, j], x[i, j] * tirx.const(2.0)))
    ),
    "lrn": _extern((1, 16, 9, 9), lambda x: topi.nn.lrn(x, 5, 1, 0.0001, 0.75, 2)),
}
