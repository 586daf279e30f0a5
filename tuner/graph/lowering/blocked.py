"""Emit operators between anchors that can stay in blocked layout. Start at `emit_blocked`.

An element-wise operator is the same operator on blocked operands. Pooling and resizing have functions of their own.
Unless a plan says otherwise, an operator stays blocked only if one of its operands already is: nothing is converted for
its sake alone, but for a pooling on a CPU. Arithmetic on halves is done in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Call, Var

from templates import default
from templates.cpu.isa import vector_unit
from templates.template import PLAIN, Layout
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.moves import Move, move_of
from tuner.graph.ir.simplify import as_constant, constant
from tuner.graph.lowering.emit import (
    FLOATS,
    INDEX_DTYPE,
    INJECTIVE,
    OPAQUE,
    OUT_FUSABLE,
    Emitter,
    Forms,
    convert,
)
from tuner.graph.lowering.pooling import Window, average_pool, average_weights, global_pool, max_pool
from tuner.graph.lowering.resizing import key_of, resize, takes_one_pixel
from tuner.graph.lowering.tables import is_lookup

Blocked = tuple[Any, Layout]
_STORED = (*FLOATS, "uint8", "int8", "int32")  # how the values of images are stored that anchors read and write

# These give finite results for finite inputs, so they may also run on the lanes that fill up a last block.
_TOTAL = {
    "abs", "add", "astype", "ceil", "clip", "floor", "hardsigmoid", "hardswish", "maximum", "minimum", "multiply",
    "negative",
    "nn.gelu", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "round", "sigmoid", "subtract", "tanh",
}  # fmt: skip
_PARTIAL = {"cos", "divide", "erf", "exp", "log", "power", "rsqrt", "sin", "sqrt", "square"}


def emit_blocked(emitter: Emitter, forms: Forms, call: Any, *, out: Var, block: int | None = None) -> Blocked | None:
    """Emit an operator in blocked layout and return its result with the layout. Return None if it has to be plain.

    `block` is the layout block that its operands are read in, whatever layout they have; 0 means that it has to be
    plain. If it is not given, it is the block of the first operand that has one, and for a pooling on a CPU otherwise
    that of its vectors: a plain one has conditions in its inner loop.
    """
    if not isinstance(call, Call) or not hasattr(call.op, "name"):
        return None
    name = call.op.name.removeprefix("relax.")
    rule = _pointwise if name in _TOTAL | _PARTIAL else _RULES.get(name)
    if rule is None or block == 0:
        return None
    found = rule(emitter, forms, call, out, block)
    return None if found is None else (emitter.typed(found[0], str(out.ty.dtype)), found[1])


def _block(forms: Forms, operands: Iterable[Any], given: int | None) -> int:
    return next(filter(None, map(forms.block_of, operands)), 0) if given is None else given


def _image(expr: Any, dtypes: Collection[str] = FLOATS) -> tuple[int, int, int, int] | None:
    """Return the shape of a batch of images (N, C, H, W) of one of these types, or None for anything else."""
    shape = shape_of(expr)
    if shape is None or len(shape) != 4 or dtype_of(expr) not in dtypes:
        return None
    return shape


def _pointwise(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    shape = _image(out, _STORED)
    full = [a for a in call.args if isinstance(a, Var) and shape is not None and shape_of(a) == shape]
    block = _block(forms, full, block)
    if shape is None or not block:
        return None
    layout = Layout(block)
    if shape[1] % block and call.op.name.removeprefix("relax.") in _PARTIAL:
        return None
    arguments = [_operand(emitter, forms, arg, shape=shape, layout=layout) for arg in call.args]
    if any(a is None for a in arguments):
        return None
    wide = [emitter.typed(a, "float32") for a in arguments]
    return emitter.builder.emit(Call(call.op, wide, call.attrs, call.ty_args)), layout


def _operand(emitter: Emitter, forms: Forms, arg: Any, *, shape: tuple[int, ...], layout: Layout) -> Any:
    """Return a tensor that broadcasts to `shape` in a form that broadcasts to the blocked shape. Return None if there
    is no such form."""
    if not isinstance(arg.ty, relax.TensorType):
        return arg
    value = constant(arg)
    if value is not None and value.size == 1:
        return as_constant(value.reshape(()))
    own = shape_of(arg)
    if own is None or dtype_of(arg) not in _STORED or len(own) > 4:
        return None
    if value is not None:
        own = (1,) * (4 - len(own)) + own
        arg = as_constant(value.reshape(own))
    if len(own) != 4:
        return None
    n, c, h, w = own
    if c == shape[1]:
        return forms.get(arg, layout)
    return emitter.builder.emit(relax.op.reshape(forms.get(arg, PLAIN), (n, 1, h, w, 1)))


def _lookup(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    if _image(out, _STORED) is None or not is_lookup(call):
        return None
    table, indices = call.args
    block = _block(forms, [indices], block)
    if not block:
        return None
    layout = Layout(block)
    return emitter.builder.emit(Call(call.op, [table, forms.get(indices, layout)], call.attrs, call.ty_args)), layout


def _window(call: Any, out: Var, dtypes: Collection[str] = FLOATS) -> Window | None:
    shape, result = _image(call.args[0], dtypes), _image(out, dtypes)
    if shape is None or result is None or call.attrs.layout != "NCHW":
        return None
    a = call.attrs

    def pair(values: Any) -> tuple[int, int]:
        return int(values[0]), int(values[1])

    padding = tuple(int(p) for p in a.padding)
    if len(padding) != 4:
        return None
    return Window(shape, result[2:], pair(a.pool_size), pair(a.strides), padding, pair(a.dilation))


def _pooled_layout(emitter: Emitter, forms: Forms, data: Any, block: int | None) -> Layout:
    """Return the layout that a pooling reads its data in. An image of fewer channels than half a vector stays plain."""
    found, image = _block(forms, [data], block), _image(data, _STORED)
    if not found and image is not None and emitter.target.kind.name == "llvm":
        lanes = vector_unit(emitter.target).lanes
        found = lanes if 2 * image[1] >= lanes else 0
    return Layout(found)


def _max_pool(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    layout, window = _pooled_layout(emitter, forms, call.args[0], block), _window(call, out, _STORED)
    if not layout.block or window is None or not window.touches_input():
        return None
    dtype = str(call.args[0].ty.dtype)
    make: Callable[[], Any] = lambda: max_pool(window, layout, dtype)  # noqa: E731
    function = emitter.function(("max_pool", window, layout, dtype), make, "max_pool", OUT_FUSABLE)
    data = forms.get(call.args[0], layout)
    return emitter.call(function, [data], layout.shape((*window.shape[:2], *window.out)), dtype), layout


def _average_pool(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    layout, window = _pooled_layout(emitter, forms, call.args[0], block), _window(call, out)
    if not layout.block or window is None:
        return None
    return _emit_average(
        emitter, forms, call.args[0], window=window, layout=layout, include_pad=bool(call.attrs.count_include_pad)
    )


def _emit_average(
    emitter: Emitter, forms: Forms, data: Any, *, window: Window, layout: Layout, include_pad: bool
) -> Blocked:
    dtype = str(data.ty.dtype)
    make: Callable[[], Any] = lambda: average_pool(window, layout, dtype)  # noqa: E731
    function = emitter.function(("average_pool", window, layout, dtype), make, "average_pool", OUT_FUSABLE)
    weights = [emitter.constant(w) for w in average_weights(window, include_pad)]
    shape = layout.shape((*window.shape[:2], *window.out))
    return emitter.call(function, [forms.get(data, layout), *weights], shape, dtype), layout


def _adaptive_pool(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    data, layout = call.args[0], Layout(_block(forms, call.args[:1], block))
    shape, result = _image(data), _image(out)
    if not layout.block or shape is None or result is None or call.attrs.layout != "NCHW":
        return None
    if shape == result:
        return forms.get(data, layout), layout
    if result[2:] == (1, 1):
        return _emit_global(emitter, forms, data, layout=layout, kind="mean")
    if shape[2] % result[2] or shape[3] % result[3]:
        return None
    size = (shape[2] // result[2], shape[3] // result[3])
    return _emit_average(
        emitter,
        forms,
        data,
        window=Window(shape, result[2:], size, size, (0, 0, 0, 0), (1, 1)),
        layout=layout,
        include_pad=True,
    )


def _global_pool(emitter: Emitter, forms: Forms, call: Any, _out: Var, block: int | None) -> Blocked | None:
    data, layout = call.args[0], Layout(_block(forms, call.args[:1], block))
    shape = _image(data)
    if not layout.block or shape is None or call.attrs.axis is None:
        return None
    if {int(a) % 4 for a in call.attrs.axis} != {2, 3}:
        return None
    pooled, _ = _emit_global(emitter, forms, data, layout=layout, kind=call.op.name.removeprefix("relax."))
    if call.attrs.keepdims:
        return pooled, layout
    plain = convert(emitter, pooled, (*shape[:2], 1, 1), source=layout, to=PLAIN)
    return emitter.builder.emit(relax.op.reshape(plain, shape[:2])), PLAIN


def _emit_global(emitter: Emitter, forms: Forms, data: Any, *, layout: Layout, kind: str) -> Blocked:
    shape, dtype = _image(data), str(data.ty.dtype)
    assert shape is not None
    key = ("global_pool", shape, layout, kind, dtype)
    function = emitter.function(
        key,
        lambda: default.schedule(global_pool(shape, layout, kind, dtype), emitter.target),
        f"global_{kind}_pool",
        OPAQUE,
    )
    return emitter.call(function, [forms.get(data, layout)], layout.shape((*shape[:2], 1, 1)), dtype), layout


def _concat(emitter: Emitter, forms: Forms, call: Any, _out: Var, block: int | None) -> Blocked | None:
    """Concatenate along height and width, and along channels if these fill whole blocks."""
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    images = [_image(part, _STORED) for part in parts]
    block = _block(forms, parts, block)
    if not block or None in images or call.attrs.axis is None or int(call.attrs.axis) % 4 == 0:
        return None
    axis, layout = int(call.attrs.axis) % 4, Layout(block)
    if axis == 1 and any(image is None or image[1] % block for image in images[:-1]):
        return None
    blocked = [forms.get(part, layout) for part in parts]
    return emitter.builder.emit(relax.op.concat(blocked, axis)), layout


def _resize(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    data, layout, attrs = call.args[0], Layout(_block(forms, call.args[:1], block)), call.attrs
    shape, result = _image(data, _STORED), _image(out, _STORED)
    if not layout.block or shape is None or result is None or attrs.layout != "NCHW":
        return None
    if dtype_of(data) not in FLOATS and not takes_one_pixel(attrs):
        return None
    held = forms.get(data, layout)
    if not takes_one_pixel(attrs):
        held = emitter.typed(held, "float32")
    dtype = str(held.ty.dtype)
    make: Callable[[], Any] = lambda: resize(attrs, shape, result[2:], layout=layout, dtype=dtype)  # noqa: E731
    # A weighted sum that is written in another layout would be computed value by value.
    pattern = INJECTIVE if takes_one_pixel(attrs) else OUT_FUSABLE
    function = emitter.function(("resize", shape, result, layout, dtype, *key_of(attrs)), make, "resize", pattern)
    return emitter.call(function, [held], layout.shape(result), dtype), layout


def _reshape(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    """Reshape images of one pixel per channel. They lie in memory as in the plain form, so a single reshape leads out
    of the blocked form."""
    data, shape = call.args[0], shape_of(out)
    image, block = _image(data, _STORED), _block(forms, [data], block)
    if not block or image is None or shape is None or image[2] * image[3] != 1 or image[1] % block:
        return None
    return emitter.builder.emit(relax.op.reshape(forms.get(data, Layout(block)), shape)), PLAIN


def _strided_slice(emitter: Emitter, forms: Forms, call: Any, out: Var, block: int | None) -> Blocked | None:
    """Slice along height and width, and along channels if whole blocks are cut out."""
    data, block = call.args[0], _block(forms, call.args[:1], block)
    shape, result = _image(data, _STORED), _image(out, _STORED)
    if not block or shape is None or result is None or not all(isinstance(a, relax.Tuple) for a in call.args[1:]):
        return None
    axes, *bounds = [[int(i) for i in arg.fields] for arg in call.args[1:]]
    begin, end, *steps = bounds
    if min(axes) < 0 or min(begin + end) < 0:
        return None
    if 1 in axes:
        at = axes.index(1)
        last = min(end[at], shape[1])
        if begin[at] % block or (last % block and last != shape[1]) or (steps and steps[0][at] != 1):
            return None
        begin[at], end[at] = begin[at] // block, -(-last // block)
    sliced = relax.op.strided_slice(forms.get(data, Layout(block)), axes, begin, end, *steps)
    return emitter.builder.emit(sliced), Layout(block)


def _move(emitter: Emitter, forms: Forms, call: Any, _out: Var, block: int | None) -> Blocked | None:
    """Move whole blocks of channels to pixels. No other function of the module has a blocked form."""
    move = move_of(emitter.builder.get()[call.args[0]])
    if move is None:
        return None
    (data,) = call.args[1].fields
    block, shape = _block(forms, [data], block), _image(data, _STORED)
    if not block or shape is None or not move.keeps_blocks(shape[1], block):
        return None
    layout, dtype = Layout(block), str(data.ty.dtype)
    make: Callable[[], Any] = lambda: _moving(move, layout.shape(shape), dtype)  # noqa: E731
    function = emitter.function(("move", move, shape, layout, dtype), make, "move", INJECTIVE)
    return emitter.call(function, [forms.get(data, layout)], move.shape(layout.shape(shape)), dtype), layout


def _moving(move: Move, shape: tuple[int, ...], dtype: str) -> tirx.PrimFunc:
    data = te.placeholder(shape, name="data", dtype=dtype)
    return te.create_prim_func([data, move.compute(data)], index_dtype_override=INDEX_DTYPE)


_RULES: dict[str, Callable[[Emitter, Forms, Any, Var, int | None], Blocked | None]] = {
    "call_tir": _move,
    "concat": _concat,
    "image.resize2d": _resize,
    "max": _global_pool,
    "mean": _global_pool,
    "nn.adaptive_avg_pool2d": _adaptive_pool,
    "nn.avg_pool2d": _average_pool,
    "nn.batch_flatten": _reshape,
    "nn.max_pool2d": _max_pool,
    "reshape": _reshape,
    "squeeze": _reshape,
    "strided_slice": _strided_slice,
    "take": _lookup,
}
