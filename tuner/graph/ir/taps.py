"""Drop the taps of a convolution that lie outside of every image: they only ever multiply padding.

Start at `without_idle_taps`. A network that is dilated for large images has such taps where the images are small: a
kernel of 3x3 that is dilated by 24 has a single one on an image of 14x14.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import as_constant, constant, is_call, with_main


def without_idle_taps(module: IRModule) -> IRModule:
    """Return a module whose convolutions with constant weights have only taps that meet an image."""
    return with_main(_Taps(module), module)


@dataclass(frozen=True)
class _Axis:
    """Describes one axis of a convolution: `size` values, zeros around them, and `taps` that are `dilation` apart."""

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    before: int
    behind: int

    def meets(self, tap: int) -> bool:
        """Tell whether a tap is ever multiplied with a value of the image."""
        first = tap * self.dilation - self.before
        return any(0 <= first + i * self.stride < self.size for i in range(self.out))

    def kept(self) -> tuple[slice, int, int]:
        """Return the taps from the first that meets the image to the last, and the padding that they need."""
        meeting = [tap for tap in range(self.taps) if self.meets(tap)] or [0]
        before = self.before - meeting[0] * self.dilation
        reach = (self.out - 1) * self.stride + (meeting[-1] - meeting[0]) * self.dilation + 1
        behind = reach - self.size - before
        if before < 0 or behind < 0:  # values would have to be cut off
            return slice(0, self.taps), self.before, self.behind
        return slice(meeting[0], meeting[-1] + 1), before, behind


@mutator
class _Taps(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> relax.Expr:
        call = super().visit_call_(call)
        return self._shortened(call) if is_call(call, "nn.conv2d") else call

    def _shortened(self, call: Any) -> relax.Expr:
        data, weight = shape_of(call.args[0]), constant(call.args[1])
        out, attrs = shape_of(call), call.attrs
        layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
        if data is None or weight is None or out is None or layouts != ("NCHW", "OIHW", "NCHW"):
            return call
        pads = [int(pad) for pad in attrs.padding]
        axes = [
            _Axis(data[i], out[i], weight.shape[i], int(attrs.strides[j]), int(attrs.dilation[j]), pads[j], pads[j + 2])
            for j, i in enumerate((2, 3))
        ]
        (rows, top, bottom), (columns, left, right) = (axis.kept() for axis in axes)
        shorter = weight[:, :, rows, columns]
        if shorter.shape == weight.shape:
            return call
        single = [n == 1 for n in shorter.shape[2:]]
        dilation = [1 if one else int(d) for one, d in zip(single, attrs.dilation, strict=True)]
        found = relax.op.nn.conv2d(
            call.args[0],
            as_constant(shorter.copy()),
            strides=list(attrs.strides),
            padding=[top, left, bottom, right],
            dilation=dilation,
            groups=int(attrs.groups),
            out_dtype=attrs.out_dtype,
        )
        return self.builder_.normalize(found)
