"""Write one-dimensional, three-dimensional and transposed convolutions as two-dimensional ones, which have templates.

Start at `as_conv2d`.

A one-dimensional convolution is one on an image of a single row, and a three-dimensional one is one on the planes of a
volume (`volumes`). A transposed convolution with strides (a, b) is a convolution with a x b times as many channels,
whose results are then moved from the channels to the pixels (`moves`).
See Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (2016).

Element-wise operators behind such a convolution are applied before its results are moved, where `fuse` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, IRModule, Var

from tuner.graph.ir.bindings import Bindings, dtype_of, shape_of, with_leaves
from tuner.graph.ir.integers import EIGHT_BITS
from tuner.graph.ir.moves import Move, emit_move
from tuner.graph.ir.simplify import as_constant, constant, is_call
from tuner.graph.ir.volumes import Depth, as_planes, as_volume, convolved, unbatched

_ONE_VALUE = (
    "astype", "clip", "erf", "exp", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu",
    "round", "sigmoid", "tanh",
)  # fmt: skip
_TWO_VALUES = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def as_conv2d(module: IRModule) -> IRModule:
    """Return a module whose convolutions with constant weights are two-dimensional and not transposed, but for
    transposed ones with three spatial axes."""
    graph = Bindings.of(module["main"])
    if not any(is_call(value, *_LAYOUTS) for value in graph.values):
        return module
    return _Rewriter(module, graph).rewrite()


@dataclass(frozen=True)
class _Form:
    """How a value is made of a two-dimensional convolution's results: they move from channels to pixels, if `move` is
    given, then an axis of rows is dropped, if `is_flat`. If `planes` is given, as many images are a volume."""

    move: Move | None = None
    is_flat: bool = False
    planes: int = 0

    @property
    def rank(self) -> int:
        """Return the number of axes of the value."""
        return 3 if self.is_flat else 5 if self.planes else 4


@dataclass(frozen=True, eq=False)
class _Inner:
    """The results of a two-dimensional convolution, of shape NCHW, and the form that they are to get."""

    value: Any
    form: _Form

    @property
    def channels(self) -> int:
        """Return how many channels the value has in its form."""
        channels = int(self.value.ty.shape[1])
        return channels if self.form.move is None else channels // self.form.move.phases


class _Rewriter:
    def __init__(self, module: IRModule, graph: Bindings) -> None:
        self._main = module["main"]
        self._graph = graph
        others = {name: func for name, func in module.functions.items() if name.name_hint != "main"}
        self._builder = relax.BlockBuilder(IRModule(others))
        self._new: dict[Var, Any] = {}
        self._inner: dict[Var, _Inner] = {}  # by the new variable that holds the value in its form

    def rewrite(self) -> IRModule:
        builder, params = self._builder, list(self._main.params)
        with builder.function("main", params, attrs=dict(self._main.attrs or {})):
            with builder.dataflow():
                for variable, value in zip(self._graph.variables, self._graph.values, strict=True):
                    self._new[variable] = self._bound(variable, with_leaves(value, self._renamed))
                results = [with_leaves(o, self._renamed) for o in self._graph.outputs]
                is_tuple = isinstance(self._main.body.body.ty, relax.TupleType)
                out = builder.emit_output(relax.Tuple(results) if is_tuple else results[0])
            builder.emit_func_output(out)
        passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
        return tvm.transform.Sequential(passes)(builder.get())  # without forms that nothing reads

    def _renamed(self, leaf: Any) -> Any:
        return self._new.get(leaf, leaf) if isinstance(leaf, Var) else leaf

    def _bound(self, variable: Var, value: Any) -> Any:
        """Emit the value of a variable. The two-dimensional convolution has the name of the one that it stands for."""
        inner = self._convolution(value, variable) or self._element_wise(value)
        if inner is None:
            return self._builder.emit(value, name_hint=variable.name)
        inner = _Inner(self._builder.emit(inner.value, name_hint=variable.name), inner.form)
        outer = self._formed(inner)
        self._inner[outer] = inner
        return outer

    def _formed(self, inner: _Inner) -> Any:
        """Emit the operators that give the results of a convolution their form."""
        value, form = inner.value, inner.form
        if form.move is not None:
            value = emit_move(self._builder, form.move, value)
        if form.planes:
            return as_volume(self._builder, value, form.planes)
        return self._builder.emit(relax.op.squeeze(value, [2])) if form.is_flat else value

    def _convolution(self, value: Any, out: Var) -> _Inner | None:
        """Return a convolution as a two-dimensional one, or None if the value is no convolution that can be written so,
        or if it is two-dimensional already."""
        if not is_call(value, *_LAYOUTS):
            return None
        weight, shape = constant(value.args[1]), shape_of(value.args[0])
        window = _window(value, out)
        if weight is None or shape is None or window is None:
            return None
        data = value.args[0]
        if window.depth is not None:
            return self._on_planes(data, weight, window, window.depth)
        if window.is_flat:
            inner = self._inner.get(data)
            is_row = inner is not None and inner.form == _Form(is_flat=True)
            data = inner.value if inner and is_row else self._builder.emit(relax.op.expand_dims(data, 2))
            weight, shape = np.expand_dims(weight, 2), (*shape[:2], 1, shape[2])
        if not window.is_transposed:
            conv = self._conv2d(data, weight, window, strides=window.strides, padding=window.padding)
            return _Inner(conv, _Form(is_flat=True))
        spans = [_Span.of(window, weight.shape[2 + axis], shape[2 + axis], axis) for axis in (0, 1)]
        before, after = zip(*(span.padding for span in spans), strict=True)
        weight = _weight_of_phases(weight, window.groups, spans)
        conv = self._conv2d(data, weight, window, strides=(1, 1), padding=(*before, *after))
        move = Move(window.strides, spans[0].crop, spans[1].crop, window.groups)
        return _Inner(conv, _Form(move, window.is_flat))

    def _on_planes(self, data: Any, weight: np.ndarray, window: _Window, depth: Depth) -> _Inner:
        """Return a three-dimensional convolution as a two-dimensional one."""
        inner = self._inner.get(data)
        if inner is not None and inner.form.planes:
            planes = unbatched(self._builder, inner.value, inner.form.planes)
        else:
            planes = as_planes(self._builder, data)
        attrs = {
            "strides": window.strides,
            "padding": window.padding,
            "dilation": window.dilation,
            "groups": window.groups,
            "out_dtype": window.out_dtype,
        }
        conv = convolved(self._builder, planes, weight, depth, attrs)
        return _Inner(conv, _Form(planes=depth.planes(int(planes.ty.shape[1]), weight.shape[2])))

    def _conv2d(
        self, data: Any, weight: np.ndarray, window: _Window, *, strides: Sequence[int], padding: Sequence[int]
    ) -> Any:
        dilation = (1, 1) if window.is_transposed else window.dilation
        kernel = as_constant(np.ascontiguousarray(weight))
        return relax.op.nn.conv2d(
            data, kernel, list(strides), list(padding), list(dilation), window.groups, out_dtype=window.out_dtype
        )

    def _element_wise(self, value: Any) -> _Inner | None:
        """Return an element-wise operator as applied to the results of a convolution before these get their form.
        Return None if no operand is such a value, or another operand differs along rows or columns. Integers of eight
        bits get their form before anything else, as they are the least to move."""
        if not is_call(value, *_ONE_VALUE, *_TWO_VALUES):
            return None
        inner = next((self._inner[a] for a in value.args if isinstance(a, Var) and a in self._inner), None)
        if inner is None or dtype_of(inner.value) in EIGHT_BITS:
            return None
        count = 2 if is_call(value, *_TWO_VALUES) else 1
        operands = [self._before_form(a, inner) for a in value.args[:count]]
        if any(o is None for o in operands):
            return None
        return _Inner(Call(value.op, [*operands, *value.args[count:]], value.attrs), inner.form)

    def _before_form(self, operand: Any, inner: _Inner) -> Any:
        """Return an operand as it is before the results get their form, or None."""
        if isinstance(operand, Var):
            other = self._inner.get(operand)
            is_alike = other is not None and other.form == inner.form
            return other.value if other and is_alike and shape_of(other.value) == shape_of(inner.value) else None
        value, rank = constant(operand), inner.form.rank
        if value is None or value.ndim > rank:
            return None
        value = value.reshape((1,) * (rank - value.ndim) + value.shape)
        if value.shape[0] != 1 or prod(value.shape[2:]) != 1 or value.size not in (1, inner.channels):
            return None
        channels, move = value.reshape(1, -1, 1, 1), inner.form.move
        if move is not None and channels.size > 1:
            grouped = np.repeat(channels.reshape(move.groups, 1, -1), move.phases, axis=1)
            channels = grouped.reshape(1, -1, 1, 1)
        return as_constant(channels)


@dataclass(frozen=True)
class _Window:
    """The window of a convolution, written in two dimensions. Padding is top, left, bottom, right. `depth` is the rest
    of a window in three dimensions."""

    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    more: tuple[int, int]  # rows and columns that output_padding adds
    groups: int
    out_dtype: str
    is_flat: bool
    is_transposed: bool
    depth: Depth | None = None


_LAYOUTS = {
    "nn.conv1d": ("NCW", "OIW"),
    "nn.conv1d_transpose": ("NCW", "IOW"),
    "nn.conv2d_transpose": ("NCHW", "IOHW"),
    "nn.conv3d": ("NCDHW", "OIDHW"),
}


def _window(call: Any, out: Var) -> _Window | None:
    """Return the window of a convolution that makes `out`, or None if its tensors have other layouts than those of ONNX
    and PyTorch."""
    name, attrs = call.op.name.removeprefix("relax."), call.attrs
    data, weight = _LAYOUTS[name]
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != (data, weight, data):
        return None
    is_flat, is_transposed, p = len(data) == 3, "transpose" in name, [int(v) for v in attrs.padding]
    depth = None
    if len(data) == 5:
        depth = Depth(int(attrs.strides[0]), (p[0], p[3]), int(attrs.dilation[0]))
        p = [p[1], p[2], p[4], p[5]]

    def pair(values: Sequence[Any], one: int) -> tuple[int, int]:
        """Return the last two values, or the only one behind that of a single row."""
        return (one, int(values[0])) if is_flat else (int(values[-2]), int(values[-1]))

    return _Window(
        strides=pair(attrs.strides, 1),
        padding=(0, p[0], 0, p[1]) if is_flat else (p[0], p[1], p[2], p[3]),
        dilation=pair(attrs.dilation, 1),
        more=pair(attrs.output_padding, 0) if is_transposed else (0, 0),
        groups=int(attrs.groups),
        out_dtype=str(dtype_of(out)),
        is_flat=is_flat,
        is_transposed=is_transposed,
        depth=depth,
    )


@dataclass(frozen=True)
class _Span:
    """Describes one spatial axis of a transposed convolution as that of a convolution.

    The result at `stride * q + phase`, counted from where the padding begins, is the sum over `reach + 1` inputs, which
    end at input q. The convolution computes q from `first` to `last`, and `padding` says by how much the input is
    extended for that. `crop` (begin, end) is what is wanted of all results.
    """

    kernel: int
    stride: int
    dilation: int
    first: int
    last: int
    size: int
    crop: tuple[int, int]

    @classmethod
    def of(cls, window: _Window, kernel: int, size: int, axis: int) -> _Span:
        """Return the span of an axis (0 or 1) with that many inputs."""
        stride, dilation = window.strides[axis], window.dilation[axis]
        before, after = window.padding[axis], window.padding[2 + axis]
        result = (size - 1) * stride + dilation * (kernel - 1) + 1 - before - after + window.more[axis]
        reach = dilation * (kernel - 1) // stride
        first = min(before // stride, reach)
        last = max((before + result - 1) // stride, size - 1)
        begin = before - first * stride
        return cls(kernel, stride, dilation, first, last, size, (begin, begin + result))

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) // self.stride

    @property
    def padding(self) -> tuple[int, int]:
        return self.reach - self.first, self.last - (self.size - 1)

    def taps(self) -> Mapping[int, tuple[int, int]]:
        """Return, for every tap of the kernel, its phase and its place in the convolution's kernel."""
        return {
            tap: (tap * self.dilation % self.stride, self.reach - tap * self.dilation // self.stride)
            for tap in range(self.kernel)
        }


def _weight_of_phases(weight: np.ndarray, groups: int, spans: Sequence[_Span]) -> np.ndarray:
    """Return the OIHW weight of the convolution that computes all phases of a transposed one with an IOHW `weight`. Its
    output channels are ordered by group, by the phases of rows and columns, and by the weight's channel."""
    rows, columns = spans
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    grouped = weight.reshape(groups, inputs, outputs, *weight.shape[2:])
    shape = (groups, rows.stride, columns.stride, outputs, inputs, rows.reach + 1, columns.reach + 1)
    result = np.zeros(shape, weight.dtype)
    for (y, (a, i)), (x, (b, j)) in product(rows.taps().items(), columns.taps().items()):
        result[:, a, b, :, :, i, j] = grouped[:, :, :, y, x].transpose(0, 2, 1)
    return result.reshape(-1, inputs, rows.reach + 1, columns.reach + 1)
