"""Write onnxruntime's products by matrices of a few bits, MatMulNBits, as the operator of `templates.four_bits`.

Start at `FEW_BITS`. Numbers of four bits stay packed. What else the node may say, other bits, an order of the inputs
(g_idx) or zero points in floating point, becomes a matrix of float32 when the model is loaded. The attribute
accuracy_level, by which onnxruntime may round the data, changes nothing: products are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from templates.four_bits import MIDDLE, WORD, in_tiles, packed
from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, Rewrite, attributes_of, operand

FOUR_BITS = "FourBits"  # our operator
_BITS = 4


@dataclass(frozen=True)
class _Matrix:
    """A matrix as a node has it: `numbers` (out, whole blocks), and for each block a scale and perhaps a zero point.
    `order` has the block of each input, if they are not in order."""

    numbers: np.ndarray
    block: int
    scale: np.ndarray  # (out, blocks), float32
    zero: np.ndarray | None
    order: np.ndarray | None
    inputs: int
    bits: int

    @property
    def stays_packed(self) -> bool:
        whole = self.zero is None or self.zero.dtype == np.uint8
        return self.bits == _BITS and self.block % WORD == 0 and self.order is None and whole

    def dequantised(self) -> np.ndarray:
        """Return the matrix in float32, (in, out)."""
        blocks = np.arange(self.inputs) // self.block if self.order is None else self.order
        middle = np.full(self.scale.shape, 1 << (self.bits - 1)) if self.zero is None else self.zero
        less = self.numbers[:, : self.inputs] - middle.astype(np.float32)[:, blocks]
        return np.ascontiguousarray((less * self.scale[:, blocks]).T.astype(np.float32))


def _unpacked(array: np.ndarray, rows: int, count: int, bits: int) -> np.ndarray:
    """Return the first `count` numbers of each row, which are stored one behind the other from the lowest bits on."""
    every = np.unpackbits(array.reshape(rows, -1), axis=-1, bitorder="little")[:, : count * bits]
    weights = 1 << np.arange(bits)
    return np.asarray((every.reshape(rows, count, bits) * weights).sum(-1, dtype=np.int64))


def _matrix(writer: NodeWriter, node: onnx.NodeProto) -> _Matrix | None:
    """Return the matrix of a node whose operands are constants. Raises ValueError for sizes that do not fit."""
    attrs = attributes_of(node)
    out, inputs, block, bits = attrs["N"], attrs["K"], attrs["block_size"], attrs.get("bits", _BITS)
    names = [operand(node, i) for i in range(1, 5)]
    values = [writer.value(name) if name else None for name in names]
    if any(name and value is None for name, value in zip(names, values, strict=True)):
        return None
    numbers, scale, zero, order = values
    assert numbers is not None
    assert scale is not None
    blocks = -(-inputs // block)
    if zero is not None and zero.dtype == np.uint8:
        zero = _unpacked(zero, out, blocks, bits).astype(np.uint8)
    elif zero is not None:
        zero = zero.reshape(out, blocks)
    unpacked, each = _unpacked(numbers, out, blocks * block, bits), scale.reshape(out, blocks).astype(np.float32)
    return _Matrix(unpacked, block, each, zero, order, inputs, bits)


def _matmul_n_bits(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    x, shape = node.input[0], writer.shape(node.input[0])
    matrix = _matrix(writer, node) if shape is not None and writer.elem_type(x) == TensorProto.FLOAT else None
    if matrix is None or shape is None:
        return None
    out, whole = len(matrix.numbers), matrix.numbers.shape[1]
    if not matrix.stays_packed:
        value = writer.add("MatMul", x, writer.constant(matrix.dequantised()))
    else:
        if whole > matrix.inputs:
            more = np.zeros((*shape[:-1], whole - matrix.inputs), np.float32)
            x = writer.add("Concat", x, writer.constant(more), axis=len(shape) - 1)
        reads = [x, writer.constant(packed(matrix.numbers, matrix.block)), writer.constant(in_tiles(matrix.scale))]
        if matrix.zero is not None and (matrix.zero != MIDDLE).any():
            reads.append(writer.constant(in_tiles(matrix.zero)))
        value = writer.add_own(FOUR_BITS, reads, [(*shape[:-1], out)], columns=out, block=matrix.block)[0]
    bias = operand(node, 5)
    return [writer.add("Add", value, bias) if bias else value]


FEW_BITS: dict[tuple[str, str], Rewrite] = {("com.microsoft", "MatMulNBits"): _matmul_n_bits}
