"""Make anchors of the products of 8-bit integers, with their epilogues. Start at `integer_steps`.

The kernels multiply uint8 data by int8 weights (`templates.integers`). Signed data are moved up by 128, together with
their zero point. Weights that do not fit into int8 are lessened by a number t that makes them fit; then t times the sum
of the data below the kernel, which the token "window" adds, is still missing. The zero point of the data times the sum
of the weights is a number per channel, which the token "offset" subtracts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.target import Target

from templates.cpu.dot_products import products_of
from templates.gpu.limits import gpu_limits
from templates.integers import INTEGERS, SUMS, multiplies_in_groups
from templates.workloads import Conv2d, Dense
from tuner.graph.fusion.chain import Anchor
from tuner.graph.fusion.integer_chain import IntegerChain
from tuner.graph.fusion.operands import Operands
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, OperatorStep, Step
from tuner.graph.ir.bindings import Bindings, dtype_of
from tuner.graph.ir.integers import IntegerProduct
from tuner.graph.ir.model import Model
from tuner.graph.ir.simplify import as_constant

_SIGNED = 128  # moves int8 to uint8


def multiplies_integers(targets: Sequence[Target]) -> bool:
    """Tell whether what is built for these targets multiplies integers: for one device that has instructions for it by
    which networks are faster than in float32."""
    if len(targets) != 1:
        return False
    products, limits = products_of(targets[0]), gpu_limits(targets[0])
    return (products is not None and products.pays) or (limits is not None and limits.multiplies_bytes)


def multiplies_pairs(targets: Sequence[Target]) -> bool:
    """Tell whether what is built for these targets multiplies two computed matrices of bytes: for a CPU that has
    instructions for it."""
    return multiplies_integers(targets) and targets[0].kind.name == "llvm"


def keeps_four_bits(targets: Sequence[Target]) -> bool:
    """Tell whether what is built for these targets has kernels for matrices of 4-bit numbers, which CPUs have."""
    return all(target.kind.name == "llvm" for target in targets)


def precisions(graph: FusedGraph) -> str:
    """Return a sentence on the precision in which a quantised network's convolutions, dense layers and products of
    computed matrices are computed."""
    whole = sum(anchor.workload.dtype == INTEGERS for anchor in graph.anchors)
    count = len(graph.anchors)
    pairs = sum(isinstance(step, OperatorStep) and step.workload.dtype == INTEGERS for step in graph.steps)
    if not whole and not pairs:
        return f"quantised: its {count} convolutions and dense layers are computed in float32"
    rest = "" if whole == count else f"; float32 computes the rest ({count - whole})"
    products = f" and {pairs} products of computed matrices" if pairs else ""
    return f"quantised: {whole} of {count} convolutions and dense layers{products} multiply integers of 8 bits{rest}"


def fits(product: IntegerProduct) -> bool:
    """Tell whether a product can become an anchor of integers. With groups it is depthwise, or has the channels of a
    vector: fewer are computed in float32. What weights are lessened by would differ from group to group."""
    if product.groups == 1:
        return product.middle is not None
    channels, each, *kernel = product.weight.shape
    return product.middle == 0 and multiplies_in_groups(product.groups, channels, each, taps=prod(kernel))


def integer_steps(
    graph: Bindings, claimed: set[int], product: IntegerProduct, anchor: Anchor, model: Model
) -> tuple[list[int], list[Step]] | None:
    """Return the bindings that an anchor of integers takes in, and its steps: those that make its operands, and the
    anchor itself. Return None if its result would be of a type that kernels do not write."""
    at = graph.index[anchor.out]
    node = model.node_names.get(anchor.out.name, anchor.out.name)
    chain = IntegerChain(graph, claimed, anchor, [at], make=Operands(anchor.out.name))
    chain.follow()
    if not chain.is_writable():
        return None
    weight, tokens, extras = _of_product(chain, product)
    zero, moved = product.numbers.zero, 0 if dtype_of(product.numbers.values) == INTEGERS else _SIGNED
    step = AnchorStep(
        anchor.kind.workload([*tokens, *chain.tokens], INTEGERS),
        node,
        _unsigned(chain.make, product),
        (*extras, *chain.extras),
        weight,
        None if chain.shift is None else chain.shift.astype(np.float32),
        chain.end,
        int(zero) + moved if isinstance(zero, float) else None,
    )
    return chain.members, [*chain.make.steps, step]


def _unsigned(make: Operands, product: IntegerProduct) -> Any:
    values = product.numbers.values
    if dtype_of(values) == INTEGERS:
        return values
    moved = make.emit(relax.op.add(make.typed(values, SUMS), relax.const(_SIGNED, SUMS)))
    return make.typed(moved, INTEGERS)


def _of_product(chain: IntegerChain, product: IntegerProduct) -> tuple[np.ndarray, list[str], list[Any]]:
    """Return the weight in int8, and the tokens and operands that come right behind the sums."""
    make, middle = chain.make, product.middle
    assert middle is not None
    zero, moved = product.numbers.zero, 0 if dtype_of(product.numbers.values) == INTEGERS else _SIGNED
    weight = (product.weight - middle).astype(np.int8)
    each = -weight.astype(np.int64).reshape(len(weight), -1).sum(1)  # what a zero point of 1 adds to the sums
    tokens: list[str] = []
    extras: list[Any] = []
    known = float(zero) if isinstance(zero, float) else None
    if known is not None:
        point: Any = as_constant(np.array([known + moved], SUMS))
        offset: Any = as_constant((each * int(known + moved)).astype(SUMS))
    else:
        point = make.shaped(make.typed(zero, SUMS), (1,))
        point = make.emit(relax.op.add(point, as_constant(np.array([moved], SUMS)))) if moved else point
        offset = make.emit(relax.op.multiply(point, as_constant(each.astype(SUMS))))
    kind = chain.anchor.kind
    if isinstance(kind, Conv2d) and any(kind.padding) and known != float(-moved):
        tokens.append("border")
        extras.append(
            as_constant(np.array([known + moved], INTEGERS)) if known is not None else make.typed(point, INTEGERS)
        )
    if known != float(-moved) or chain.offset is not None:
        tokens.append("offset")
        extras.append(make.added(chain.offset, offset))
    if middle:
        tokens.append("window")
        extras.append(_window(make, product, kind))
    return weight, tokens, extras


def _window(make: Operands, product: IntegerProduct, kind: Conv2d | Dense) -> Any:
    """Return what the weights were lessened by, times the sums of the data less their zero point, in int32: one value
    for each output pixel or row."""
    data = make.typed(product.call.args[0], "float32")
    if isinstance(kind, Dense):
        sums = make.emit(relax.op.sum(make.shaped(data, kind.data_shape), axis=[1]))
    else:
        image = make.emit(relax.op.sum(data, axis=[1], keepdims=True))
        ones = as_constant(np.ones((1, 1, *kind.kernel), np.float32))
        window = {"strides": kind.strides, "padding": kind.padding, "dilation": kind.dilation}
        sums = make.emit(relax.op.nn.conv2d(image, ones, **window))
        sums = make.shaped(sums, (kind.batch, kind.out_height, kind.out_width))
    return make.emit(relax.op.multiply(make.typed(sums, SUMS), relax.const(product.middle, SUMS)))
