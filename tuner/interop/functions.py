"""Finds which of our workloads a TIR function computes that was made elsewhere, as TVM's operators are. Start at
`workload_of`.

Blocks are read as equations. One block sums products, and its indices give strides and dilation. A block before it may
copy its data into a larger buffer, whose offset is the padding. The blocks behind it apply an epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.sym.pattern import detect_linear_equation

from templates.workloads import Anchor, Conv2d, Dense
from tuning_db.errors import DatabaseError
from tuning_db.record import Workload

DTYPES = ("float32", "float16")


def workload_of(func: tirx.PrimFunc) -> Workload:
    """Return the workload that a function computes. Raises DatabaseError, saying why, if it is none of our
    operators."""
    body = _Body(func)
    sums = [block for block in body.blocks if _reduces(block)]
    if len(sums) != 1:
        raise DatabaseError(f"its function sums up in {len(sums)} blocks: no operator of ours")
    at = body.blocks.index(sums[0])
    dtype = str(sums[0].writes[0].source.dtype)
    if dtype not in DTYPES:
        raise DatabaseError(f"its function computes {dtype} (known: {', '.join(DTYPES)})")
    operator = _operator(sums[0], body, body.blocks[:at])
    return operator.workload(_epilogue(sums[0], body, body.blocks[at + 1 :]), dtype)


@dataclass
class _Body:
    """Holds the blocks of a function in their order, and its parameters."""

    func: tirx.PrimFunc
    blocks: list[Any] = field(init=False)
    params: set[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks, self.params = [], set(self.func.params)

        def visit(block: Any) -> None:
            if block.name_hint != "root":
                self.blocks.append(block)

        tvm_ffi.structural_walk(self.func.body, [(SBlock, visit)])


def _operator(sums: Any, body: _Body, before: Sequence[Any]) -> Anchor:
    ranks = [len(read.region) for read in sums.reads]
    if ranks == [4, 4]:
        return _conv2d(sums, body, before)
    if ranks == [2, 2]:
        return _dense(sums, body, before)
    raise _unlike(sums)


def _reduces(block: Any) -> bool:
    return block.init is not None and any(v.iter_type == tirx.IterVar.CommReduce for v in block.iter_vars)


def _linear(expression: Any, variables: Sequence[Any]) -> tuple[dict[int, int], int]:
    """Return the coefficients that are not zero, by the index of their variable, and the constant."""
    *factors, constant = detect_linear_equation(expression, list(variables)) or (None,)
    if constant is None or not all(isinstance(c, tirx.IntImm) for c in (*factors, constant)):
        raise DatabaseError("its indices are not linear: no operator of ours")
    return {i: int(c) for i, c in enumerate(factors) if int(c)}, int(constant)


def _indices(read: Any, block: Any) -> list[tuple[dict[int, int], int]]:
    return [_linear(axis.min, [v.var for v in block.iter_vars]) for axis in read.region]


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)


def _unlike(block: Any) -> DatabaseError:
    return DatabaseError(f"its block {block.name_hint} is no operator of ours")


def _conv2d(block: Any, body: _Body, before: Sequence[Any]) -> Conv2d:
    """Return the convolution of a block with axes (n, f, y, x, c, r, s), without c if it is depthwise. Data is NCHW,
    weight OIHW."""
    data, weight = block.reads
    depthwise = len(block.iter_vars) == 6
    n, f, y, x, *channel, r, s = range(len(block.iter_vars))
    c = channel[0] if channel else None
    (row, row_offset), (column, column_offset) = (index for index in _indices(data, block)[2:])
    plain = ({n: 1}, 0), ({f: 1} if c is None else {c: 1}, 0)
    kernel = ({f: 1}, 0), ({} if c is None else {c: 1}, 0), ({r: 1}, 0), ({s: 1}, 0)
    if (
        tuple(_indices(data, block)[:2]) != plain
        or tuple(_indices(weight, block)) != kernel
        or set(row) != {y, r}
        or set(column) != {x, s}
        or row_offset
        or column_offset
        or weight.source not in body.params
    ):
        raise _unlike(block)
    source, (top, left) = _padded(data.source, body, before)
    batch, channels, height, width = _shape(source)
    padded, (outputs, _, kh, kw) = _shape(data.source), _shape(weight.source)
    return Conv2d(
        batch,
        channels,
        height,
        width,
        outputs,
        (kh, kw),
        (row[y], column[x]),
        (top, left, padded[2] - height - top, padded[3] - width - left),
        (row[r], column[s]),
        channels if depthwise else 1,
    )


def _padded(buffer: Any, body: _Body, before: Sequence[Any]) -> tuple[Any, tuple[int, int]]:
    """Return the parameter that a convolution reads, and how many rows above and columns left of it are zeros. A block
    before the convolution may pad the parameter, or only copy it."""
    if buffer in body.params:
        return buffer, (0, 0)
    no_padding = DatabaseError("what comes before its sums is no padding")
    if len(before) != 1 or not before[0].writes[0].source.same_as(buffer):
        raise no_padding
    (pad,) = before
    value = pad.body.value
    if isinstance(value, ir.Call) and value.op.name == "prim.if_then_else" and _is(value.args[2], 0):
        value = value.args[1]
    if not (isinstance(value, ir.TensorLoad) and value.source in body.params):
        raise no_padding
    offsets = [-constant for _, constant in _indices(pad.reads[0], pad)]
    if offsets[:2] != [0, 0]:
        raise no_padding
    return value.source, (offsets[2], offsets[3])


def _dense(block: Any, body: _Body, before: Sequence[Any]) -> Dense:
    """Return the dense layer of a block with axes (row, feature, k). Data is (rows, in), weight (out, in)."""
    data, weight = block.reads
    if (
        before
        or len(block.iter_vars) != 3
        or _indices(data, block) != [({0: 1}, 0), ({2: 1}, 0)]
        or _indices(weight, block) != [({1: 1}, 0), ({2: 1}, 0)]
        or not {data.source, weight.source} <= body.params
    ):
        raise _unlike(block)
    (rows, inputs), (outputs, _) = _shape(data.source), _shape(weight.source)
    return Dense(rows, inputs, outputs)


def _epilogue(sums: Any, body: _Body, behind: Sequence[Any]) -> tuple[str, ...]:
    """Return the epilogue's tokens: what the blocks behind the sums do, one after the other."""
    tokens: list[str] = []
    current = sums.writes[0].source
    for block in behind:
        if not isinstance(block.body, tirx.BufferStore):
            raise DatabaseError(f"its block {block.name_hint} is no epilogue of ours")
        tokens += _tokens(block.body.value, current, body, block)
        current = block.writes[0].source
    if current not in body.params:
        raise DatabaseError("its result is not what the function returns")
    return tuple(tokens)


def _tokens(value: Any, current: Any, body: _Body, block: Any) -> list[str]:
    if isinstance(value, ir.TensorLoad) and value.source.same_as(current):
        return []
    if isinstance(value, tirx.Add):
        for rest, operand in ((value.a, value.b), (value.b, value.a)):
            if isinstance(operand, ir.TensorLoad) and operand.source in body.params:
                return [*_tokens(rest, current, body, block), _operand(operand.source, current)]
    if isinstance(value, tirx.Max) and _is(value.b, 0):
        return [*_tokens(value.a, current, body, block), "relu"]
    raise DatabaseError(f"its block {block.name_hint} is no epilogue of ours")


def _operand(buffer: Any, current: Any) -> str:
    """Return the token of an addend: "add" for a whole tensor, "bias" for one value a channel."""
    shape, out = _shape(buffer), _shape(current)
    if shape in ((out[1],), tuple(extent if axis == 1 else 1 for axis, extent in enumerate(out))):
        return "bias"
    if shape != out:
        raise DatabaseError(f"its epilogue adds a tensor of shape {list(shape)}")
    return "add"


def _is(value: ir.PrimExpr, number: float) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and float(value) == number
