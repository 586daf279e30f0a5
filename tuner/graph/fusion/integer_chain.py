"""Follow the chain of readers behind a product of 8-bit integers, up to the bytes that it becomes. Start at
`IntegerChain`.

A product's sums become real numbers, and these are quantised. What a network adds to a quantised result is another
quantised tensor, with a scale of its own: the sum is quantised again. All of it becomes one epilogue, which reads the
other tensor as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm.ir import Var

from templates.epilogue import OPERANDS
from templates.integers import INTEGERS, SUMS
from tuner.graph.fusion.chain import Chain
from tuner.graph.fusion.operands import Operands
from tuner.graph.fusion.sums import Step, sum_numbers
from tuner.graph.ir.bindings import Bindings, dtype_of, shape_of
from tuner.graph.ir.integers import REALS
from tuner.graph.ir.simplify import as_constant, constant, is_call, scalar

_HIGHEST = 255.0


@dataclass(frozen=True, eq=False)
class _Bytes:
    """A uint8 tensor, and what its values mean as real numbers."""

    values: Var
    step: Step


def dequantised(graph: Bindings, expr: Any) -> _Bytes | None:
    """Return the bytes that an expression makes real numbers of, or None if it is anything else."""
    scale, zero, value = 1.0, 0.0, graph.value_of(expr)
    if is_call(value, "multiply"):
        found = scalar(value.args[1])
        if found is None:
            return None
        scale, value = found, graph.value_of(value.args[0])
    if is_call(value, "subtract"):
        found = scalar(value.args[1])
        if found is None:
            return None
        zero, value = found, graph.value_of(value.args[0])
    if not is_call(value, "astype") or dtype_of(value) != "float32" or dtype_of(value.args[0]) != INTEGERS:
        return None
    return _Bytes(value.args[0], Step(scale, zero)) if isinstance(value.args[0], Var) else None


@dataclass(eq=False)
class IntegerChain(Chain):
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
        if self._quantized():
            self._sum_of_bytes()

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

    def _quantized(self) -> bool:
        """Follow a quantisation to uint8 by constants."""
        before = self._mark()
        numbers = self._quantisation() if dtype_of(self.end) == "float32" else None
        if numbers is None:
            return self._restore(before)
        self.tokens += ["real"] * self.whole
        self.whole = False
        if numbers.scale != 1:
            self._multiply(1 / numbers.scale)
        return self._add_token("quantize", numbers.zero)

    def _sum_of_bytes(self) -> bool:
        """Follow the addition of another quantised tensor to the quantised result, and the sum's quantisation."""
        before = self._mark()
        own, other = self._dequantisation(), self._other_bytes()
        is_clipped = self._taken("nn.relu") is not None
        result = self._quantisation()
        if own is None or other is None or result is None:
            return self._restore(before)
        numbers = sum_numbers(own, other.step, result, is_clipped=is_clipped)
        if numbers is None:
            return self._restore(before)
        self._add_bytes(other, *numbers)
        self.tokens += ["relu"] * is_clipped
        return self._add_token("quantize", result.zero)

    def _add_bytes(self, other: _Bytes, *numbers: float) -> None:
        self.tokens.append("bytes")
        self.extras.append(other.values)
        self._add_token("add_bytes", *numbers)

    def _mark(self) -> tuple[Var, int, int, int]:
        return self.end, len(self.members), len(self.tokens), len(self.extras)

    def _restore(self, mark: tuple[Var, int, int, int]) -> bool:
        """Return to where the chain was marked. Returns False."""
        self.end, members, tokens, extras = mark
        del self.members[members:], self.tokens[tokens:], self.extras[extras:]
        return False

    def _add_token(self, token: str, *numbers: float) -> bool:
        """Add a token whose operand is these numbers. Returns True."""
        self.tokens.append(token)
        self.extras.append(as_constant(np.array(numbers, OPERANDS[token].dtype)))
        return True

    def _dequantisation(self) -> Step | None:
        """Advance over a conversion of bytes to real numbers, and return its scale and zero point. Return None if
        something else follows."""
        scale, zero = 1.0, 0.0
        if (call := self._taken("astype")) is None or dtype_of(call) != "float32":
            return None
        if (call := self._taken("subtract")) is not None:
            point = scalar(call.args[1])
            if point is None:
                return None
            zero = point
        if (call := self._taken("multiply")) is not None:
            factor = scalar(call.args[1])
            if factor is None:
                return None
            scale = factor
        return Step(scale, zero)

    def _other_bytes(self) -> _Bytes | None:
        """Advance over the addition of a quantised tensor of the same shape, and return that tensor. Return None if
        something else follows."""
        following = self._next()
        if following is None or not is_call(following[1], "add"):
            return None
        user, call = following
        other = dequantised(self.graph, call.args[1] if self.end.same_as(call.args[0]) else call.args[0])
        if other is None or shape_of(other.values) != shape_of(self.end):
            return None
        self._advance(user)
        return other

    def _added_bytes(self) -> bool:
        """Follow the addition of a quantised tensor to real numbers."""
        other = self._other_bytes()
        if other is None:
            return False
        scale, zero = other.step.scale, other.step.zero
        self._add_bytes(other, 1.0, scale, -zero * scale)
        return True

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

    def _quantisation(self) -> Step | None:
        """Advance over a division by the scale, if there is one, a rounding, the addition of the zero point, if there
        is one, a clipping and a conversion. Return the scale and the zero point, or None if something else follows."""
        scale, zero = 1.0, 0.0
        if (call := self._taken("divide")) is not None:
            step = scalar(call.args[1])
            if not step:
                return None
            scale = step
        if self._taken("round") is None:
            return None
        if (call := self._taken("add")) is not None:
            point = scalar(call.args[1])
            if point is None or point not in range(int(_HIGHEST) + 1):
                return None
            zero = point
        if not self._clipping():
            return None
        call = self._taken("astype")
        if call is not None and dtype_of(call) == SUMS:  # what a Cast of ONNX is written as
            call = self._taken("astype")
        return Step(scale, zero) if call is not None and dtype_of(call) == INTEGERS else None

    def _clipping(self) -> bool:
        """Follow a clipping to the range of uint8, in one operator or in two."""
        if (call := self._taken("clip")) is not None:
            return [float(getattr(bound, "value", bound)) for bound in call.args[1:]] == [0.0, _HIGHEST]
        most = self._taken("minimum")
        least = None if most is None else self._taken("maximum")
        return least is not None and (scalar(most.args[1]), scalar(least.args[1])) == (_HIGHEST, 0.0)

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
        return self._of_reals(self._added_bytes) or self._of_reals(super()._residual)

    def _of_reals(self, follow: Callable[[], bool]) -> bool:
        """Follow an operation that real numbers are needed for."""
        count = len(self.tokens)
        if dtype_of(self.end) != "float32" or not follow():
            return False
        if self.whole:
            self.tokens.insert(count, "real")
            self.whole = False
        return True
