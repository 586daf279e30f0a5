"""Make anchors of the products of 8-bit integers, with their epilogues. Start at `integer_steps`.

The kernels multiply uint8 data by int8 weights (`templates.integers`). Signed data are moved up by 128, together with
their zero point. Weights that do not fit into int8 are lessened by a number t that makes them fit; then t times the sum
of the data below the kernel, which the token "window" adds, is still missing. The zero point of the data times the sum
of the weights is a number per channel, which the token "offset" subtracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.target import Target

from templates.cpu.dot_products import products_of
from templates.gpu.limits import gpu_limits
from templates.integers import INTEGERS, SUMS, multiplies_in_groups
from templates.workloads import Conv2d, Dense
from tuner.graph.fusion.chain import Anchor, Chain
from tuner.graph.fusion.operands import Operands
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, Step
from tuner.graph.ir.bindings import Bindings, dtype_of, shape_of
from tuner.graph.ir.integers import REALS, IntegerProduct
from tuner.graph.ir.model import Model
from tuner.graph.ir.simplify import as_constant, constant, is_call, scalar

_SIGNED = 128  # moves int8 to uint8


def multiplies_integers(targets: Sequence[Target]) -> bool:
    """Tell whether what is built for these targets multiplies integers: for one device that has instructions for it by
    which networks are faster than in float32."""
    if len(targets) != 1:
        return False
    products, limits = products_of(targets[0]), gpu_limits(targets[0])
    return (products is not None and products.pays) or (limits is not None and limits.multiplies_bytes)


def keeps_four_bits(targets: Sequence[Target]) -> bool:
    """Tell whether what is built for these targets has kernels for matrices of 4-bit numbers, which CPUs have."""
    return all(target.kind.name == "llvm" for target in targets)


def precisions(graph: FusedGraph) -> str:
    """Return a sentence on the precision in which a quantised network's convolutions and dense layers are computed."""
    whole = sum(anchor.workload.dtype == INTEGERS for anchor in graph.anchors)
    count = len(graph.anchors)
    if not whole:
        return f"quantised: its {count} convolutions and dense layers are computed in float32"
    rest = "" if whole == count else f"; float32 computes the rest ({count - whole})"
    return f"quantised: {whole} of {count} convolutions and dense layers multiply integers of 8 bits{rest}"


def fits(product: IntegerProduct) -> bool:
    """Tell whether a product can become an anchor of integers. With groups it is depthwise, or has the channels of a
    vector: fewer are computed in float32. What weights are lessened by would differ from group to group."""
    if product.groups == 1:
        return product.middle is not None
    channels, each, *kernel = product.weight.shape
    return product.middle == 0 and multiplies_in_groups(product.groups, channels, each, taps=prod(kernel))


@dataclass(eq=False)
class _IntegerChain(Chain):
    """A chain that begins with whole numbers. `offset` is an int32 value per channel that they are still to be added.
    `whole` is true until they have become real numbers."""

    make: Operands = field(default_factory=lambda: Operands(""))
    offset: Any = None
    whole: bool = True

    def follow(self) -> None:
        while self._conversion() or self._added_number():
            pass
        while self._activation() or self._scaled() or self._bias():
            pass
        while self._residual() or self._activation():
            pass
        self._quantized()

    @property
    def channels(self) -> int:
        return self.anchor.kind.out_shape[1]

    def _conversion(self) -> bool:
        """Follow a conversion of the whole numbers to another type, which all have room for them."""
        following = self._next()
        if not self.whole or following is None or not is_call(following[1], "astype"):
            return False
        user, call = following
        if dtype_of(call) not in (SUMS, *REALS):
            return False
        return self._advance(user)

    def _added_number(self) -> bool:
        """Follow the addition of a whole number per channel."""
        following = self._next()
        if not self.whole or following is None or not is_call(following[1], "add") or dtype_of(self.end) != SUMS:
            return False
        user, call = following
        other = self._per_channel_operand(call)
        if other is None:
            return False
        self.offset = self.make.added(self.offset, self.make.along(other, self.channels))
        return self._advance(user)

    def _per_channel_operand(self, call: Any) -> Any:
        """Return the operand of a call beside the chain's end, if it has one value or one per channel."""
        other = call.args[1] if self.end.same_as(call.args[0]) else call.args[0]
        own = shape_of(other)
        if own is None or dtype_of(other) != dtype_of(self.end) or not self._is_along_channels(own):
            return None
        return other if prod(own) in (1, self.channels) else None

    def _real(self) -> bool:
        """Tell whether the chain's end is of float32. The sums become real numbers where it is first asked for."""
        if dtype_of(self.end) != "float32":
            return False
        if self.whole:
            self.tokens.append("real")
            self.whole = False
        return True

    def is_writable(self) -> bool:
        """Tell whether kernels can write the chain's end."""
        return self._real() or dtype_of(self.end) in (SUMS, INTEGERS)

    def _scaled(self) -> bool:
        """Follow a multiplication by a number, or by one per channel."""
        following = self._next()
        if following is None or not is_call(following[1], "multiply") or dtype_of(self.end) != "float32":
            return False
        user, call = following
        factor = self._per_channel_operand(call)
        if factor is None or not self._real():
            return False
        known = self._per_channel(factor)
        factor = self.make.along(factor, self.channels) if known is None else as_constant(known.astype(np.float32))
        if self.tokens[-1] == "scale":
            self.extras[-1] = self.make.multiplied(self.extras[-1], factor)
        else:
            self.tokens.append("scale")
            self.extras.append(factor)
        return self._advance(user)

    def _bias(self) -> bool:
        """Follow the addition of a constant per channel, of which an epilogue may have one."""
        following = self._next()
        if following is None or self.shift is not None or not is_call(following[1], "add", "subtract"):
            return False
        user, call = following
        if dtype_of(self.end) != "float32" or (
            call.op.name.endswith("subtract") and not self.end.same_as(call.args[0])
        ):
            return False
        value = self._per_channel(call.args[1] if self.end.same_as(call.args[0]) else call.args[0])
        if value is None or not self._real():
            return False
        self.shift = -value if call.op.name.endswith("subtract") else value
        self.tokens.append("bias")
        return self._advance(user)

    def _quantized(self) -> None:
        """Follow a quantisation to uint8 by constants."""
        end, count = self.end, len(self.members)
        numbers = self._quantisation() if dtype_of(end) == "float32" else None
        if numbers is None:
            self.end = end
            del self.members[count:]
            return
        inverse, zero = numbers
        self.tokens += ["real"] * self.whole
        self.whole = False
        if inverse != 1:
            self._multiply(inverse)
        self.tokens.append("quantize")
        self.extras.append(as_constant(np.array([zero], np.float32)))

    def _multiply(self, number: float) -> None:
        """Multiply the chain's end by a positive number, by the scale and the bias if these come last: a ReLU behind
        them makes no difference."""
        behind = [token for token in self.tokens if token != "relu"][-2:]
        scale = constant(self.extras[-1]) if self.extras else None
        if ((behind[-1:] == ["bias"] and behind[0] == "scale") or behind[-1:] == ["scale"]) and scale is not None:
            self.extras[-1] = as_constant((scale * number).astype(np.float32))
            if behind[-1] == "bias" and self.shift is not None:
                self.shift = self.shift * number
            return
        self.tokens.append("scale")
        self.extras.append(as_constant(np.full(self.channels, number, np.float32)))

    def _quantisation(self) -> tuple[float, float] | None:
        """Advance over a division by the scale, if there is one, a rounding, the addition of the zero point, if there
        is one, a clipping and a conversion. Return 1 / scale and the zero point, or None if something else follows."""
        inverse, zero = 1.0, 0.0
        if (call := self._taken("divide")) is not None:
            step = scalar(call.args[1])
            if not step:
                return None
            inverse = 1 / step
        if self._taken("round") is None:
            return None
        if (call := self._taken("add")) is not None:
            point = scalar(call.args[1])
            if point is None:
                return None
            zero = point
        call = self._taken("clip")
        if call is None or [float(getattr(bound, "value", bound)) for bound in call.args[1:]] != [0.0, 255.0]:
            return None
        call = self._taken("astype")
        return (inverse, zero) if call is not None and dtype_of(call) == INTEGERS else None

    def _taken(self, name: str) -> Any:
        """Advance over the next operator if it has this name, and return its call."""
        following = self._next()
        if following is None or not is_call(following[1], name):
            return None
        self._advance(following[0])
        return following[1]

    def _activation(self) -> bool:
        return self._of_reals(super()._activation)

    def _residual(self) -> bool:
        return self._of_reals(super()._residual)

    def _of_reals(self, follow: Callable[[], bool]) -> bool:
        """Follow an operation that real numbers are needed for."""
        count = len(self.tokens)
        if dtype_of(self.end) != "float32" or not follow():
            return False
        if self.whole:
            self.tokens.insert(count, "real")
            self.whole = False
        return True


def integer_steps(
    graph: Bindings, claimed: set[int], product: IntegerProduct, anchor: Anchor, model: Model
) -> tuple[list[int], list[Step]] | None:
    """Return the bindings that an anchor of integers takes in, and its steps: those that make its operands, and the
    anchor itself. Return None if its result would be of a type that kernels do not write."""
    at = graph.index[anchor.out]
    node = model.node_names.get(anchor.out.name, anchor.out.name)
    chain = _IntegerChain(graph, claimed, anchor, [at], make=Operands(anchor.out.name))
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


def _of_product(chain: _IntegerChain, product: IntegerProduct) -> tuple[np.ndarray, list[str], list[Any]]:
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
