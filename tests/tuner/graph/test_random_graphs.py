"""Random graphs of two to twelve operators have onnxruntime's values, shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, run
from tuner.graph import fuse, load_onnx
from tuner.module import OnnxReference

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, ...]
SIZES = st.sampled_from([1, 2, 3, 5, 7, 9, 12, 17])
UNARY = ("Abs", "Elu", "Erf", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid", "Softplus",
         "Softsign", "Tanh", "Mish", "Sin", "Cos")  # fmt: skip
MOST = 20_000  # values of a tensor


@dataclass
class Drawn:
    """A graph on its way: the tensors that it has, in float32, by their names."""

    draw: Draw
    net: Net = field(default_factory=lambda: Net(opset=18))
    shapes: dict[str, Shape] = field(default_factory=dict)

    def of_rank(self, *ranks: int) -> str | None:
        """One of the tensors that have as many axes."""
        names = [name for name, shape in self.shapes.items() if len(shape) in ranks]
        return self.draw(st.sampled_from(names)) if names else None

    def add(self, kind: str, shape: Shape, *reads: str, **attributes: Any) -> None:
        self.shapes[self.net.op(kind, *reads, **attributes)] = shape


def unary(g: Drawn) -> None:
    x = g.of_rank(1, 2, 3, 4)
    g.add(g.draw(st.sampled_from(UNARY)), g.shapes[x], x)


def binary(g: Drawn) -> None:
    """Of two tensors of a shape, or of one and a constant that is broadcast."""
    x = g.of_rank(1, 2, 3, 4)
    shape, kind = g.shapes[x], g.draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"]))
    same = [name for name, other in g.shapes.items() if other == shape]
    if g.draw(st.booleans()):
        g.add(kind, shape, x, g.draw(st.sampled_from(same)))
    else:
        narrow = [size if g.draw(st.booleans()) else 1 for size in shape]
        g.add(kind, shape, x, g.net.weight(*narrow[g.draw(st.integers(0, len(shape) - 1)) :]))


def divided(g: Drawn) -> None:
    x = g.of_rank(1, 2, 3, 4)
    below = g.net.op("Add", g.net.op("Abs", x), g.net.scalar(0.5))
    g.add("Div", g.shapes[x], x, below)


def convolution(g: Drawn) -> None:
    x = g.of_rank(3, 4)
    if x is None:
        return
    n, c, *rows = g.shapes[x]
    kernel = [g.draw(st.integers(1, min(4, size))) for size in rows]
    strides, pads = (
        [g.draw(st.integers(1, 2)) for _ in rows],
        [g.draw(st.integers(0, k - 1)) for k in [*kernel, *kernel]],
    )
    group = c if g.draw(st.integers(0, 3)) == 0 else 1
    out = c * g.draw(st.integers(1, 2)) if group > 1 else g.draw(SIZES)
    scale = 1 / np.sqrt(np.prod(kernel) * c / group)
    made = [(size + pads[i] + pads[i + len(rows)] - kernel[i]) // strides[i] + 1 for i, size in enumerate(rows)]
    reads = [x, g.net.weight(out, c // group, *kernel, scale=scale)] + [g.net.weight(out)] * g.draw(st.integers(0, 1))
    g.add("Conv", (n, out, *made), *reads, kernel_shape=kernel, strides=strides, pads=pads, group=group)


def transposed_convolution(g: Drawn) -> None:
    x = g.of_rank(4)
    if x is None or np.prod(g.shapes[x]) > MOST / 8:
        return
    n, c, h, w = g.shapes[x]
    kernel, stride, out = g.draw(st.integers(2, 3)), g.draw(st.integers(1, 2)), g.draw(st.integers(1, 5))
    weight = g.net.weight(c, out, kernel, kernel, scale=1 / np.sqrt(c * kernel))
    made = [(size - 1) * stride + kernel for size in (h, w)]
    g.add("ConvTranspose", (n, out, *made), x, weight, kernel_shape=[kernel, kernel], strides=[stride, stride])


def pool(g: Drawn) -> None:
    x = g.of_rank(4)
    if x is None:
        return
    n, c, *rows = g.shapes[x]
    kernel = [g.draw(st.integers(1, min(3, size))) for size in rows]
    strides = [g.draw(st.integers(1, 2)) for _ in rows]
    made = [(size - k) // s + 1 for size, k, s in zip(rows, kernel, strides, strict=True)]
    kind = g.draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    g.add(kind, (n, c, *made), x, kernel_shape=kernel, strides=strides)


def global_pool(g: Drawn) -> None:
    x = g.of_rank(4)
    if x is not None:
        kind = g.draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"]))
        g.add(kind, (*g.shapes[x][:2], 1, 1), x)


def reduced(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    kind = g.draw(st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"]))
    made = tuple(1 if i == axis else size for i, size in enumerate(shape))
    g.add(kind, made, x, g.net.constant(np.array([axis - len(shape) * g.draw(st.integers(0, 1))])))


def softmax(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    axis = g.draw(st.integers(-1, len(g.shapes[x]) - 1))
    g.add(g.draw(st.sampled_from(["Softmax", "LogSoftmax"])), g.shapes[x], x, axis=axis)


def normalised(g: Drawn) -> None:
    x = g.of_rank(3, 4)
    if x is None:
        return
    shape = g.shapes[x]
    if g.draw(st.booleans()):
        g.add("LayerNormalization", shape, x, g.net.weight(shape[-1]), g.net.weight(shape[-1]), axis=-1, epsilon=1e-2)
    else:
        channels = [g.net.weight(shape[1]) for _ in range(2)]
        g.add("InstanceNormalization", shape, x, *channels, epsilon=1e-2)


def product(g: Drawn) -> None:
    x = g.of_rank(2, 3)
    if x is None:
        return
    *lead, inner = g.shapes[x]
    out = g.draw(SIZES)
    weight = g.net.weight(*lead[:-1] if g.draw(st.booleans()) else (), inner, out, scale=1 / np.sqrt(inner))
    g.add("MatMul", (*lead, out), x, weight)


def turned(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    order = g.draw(st.permutations(range(len(g.shapes[x]))))
    g.add("Transpose", tuple(g.shapes[x][i] for i in order), x, perm=order)


def reshaped(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    shape = g.shapes[x]
    at = g.draw(st.integers(1, len(shape) - 1))
    made = (int(np.prod(shape[:at])), *shape[at:]) if g.draw(st.booleans()) else (*shape[:at], int(np.prod(shape[at:])))
    g.add("Reshape", made, x, g.net.constant(np.array(made)))


def sliced(g: Drawn) -> None:
    x = g.of_rank(1, 2, 3, 4)
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    begin = g.draw(st.integers(0, shape[axis] - 1))
    end, step = g.draw(st.integers(begin + 1, shape[axis])), g.draw(st.integers(1, 3))
    made = tuple(-(-(end - begin) // step) if i == axis else size for i, size in enumerate(shape))
    g.add("Slice", made, x, *(g.net.constant(np.array([v])) for v in (begin, end, axis, step)))


def joined(g: Drawn) -> None:
    x = g.of_rank(1, 2, 3, 4)
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    rest = shape[:axis] + shape[axis + 1 :]
    fits = [n for n, s in g.shapes.items() if len(s) == len(shape) and s[:axis] + s[axis + 1 :] == rest]
    other = g.draw(st.sampled_from(fits))
    total = shape[axis] + g.shapes[other][axis]
    g.add("Concat", (*shape[:axis], total, *shape[axis + 1 :]), x, other, axis=axis)


def padded(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    shape, mode = g.shapes[x], g.draw(st.sampled_from(["constant", "reflect", "edge"]))
    most = [min(2, size - 1) if mode == "reflect" else 2 for size in shape]
    pads = [g.draw(st.integers(0, m)) for m in [*most, *most]]
    made = tuple(size + pads[i] + pads[i + len(shape)] for i, size in enumerate(shape))
    g.add(
        "Pad", made, x, g.net.constant(np.array(pads)), *([g.net.scalar(0.5)] if mode == "constant" else []), mode=mode
    )


def resized(g: Drawn) -> None:
    x = g.of_rank(4)
    if x is None:
        return
    n, c, h, w = g.shapes[x]
    made = (n, c, g.draw(st.integers(1, 2 * h)), g.draw(st.integers(1, 2 * w)))
    rule = g.draw(st.sampled_from(["half_pixel", "asymmetric", "pytorch_half_pixel"]))
    mode = g.draw(st.sampled_from(["linear", "cubic"]))
    g.add("Resize", made, x, "", "", g.net.constant(np.array(made)), mode=mode, coordinate_transformation_mode=rule)


def chosen(g: Drawn) -> None:
    """By the sign of the graph's own input, whose values are exact."""
    x = next(iter(g.shapes))
    positive = g.net.op("Greater", x, g.net.scalar(0.1))
    same = [name for name, shape in g.shapes.items() if shape == g.shapes[x]]
    a, b = (g.draw(st.sampled_from(same)) for _ in range(2))
    g.add("Where", g.shapes[x], positive, a, b)


def halved_in_parts(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    if shape[axis] < 2:
        return
    first = g.draw(st.integers(1, shape[axis] - 1))
    sizes = [first, shape[axis] - first]
    name = g.net.op("Split", x, g.net.constant(np.array(sizes)), outputs=2, axis=axis)
    for part, size in ((name, sizes[0]), (f"{name}_1", sizes[1])):
        g.shapes[part] = (*shape[:axis], size, *shape[axis + 1 :])


def gathered(g: Drawn) -> None:
    x = g.of_rank(2, 3, 4)
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    rows = g.draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=5))
    g.add("Gather", (*shape[:axis], len(rows), *shape[axis + 1 :]), x, g.net.constant(np.array(rows)), axis=axis)


def through_another_type(g: Drawn) -> None:
    """A half, a double, or whole numbers of the graph's own input."""
    kind = g.draw(st.sampled_from([TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64]))
    x = g.of_rank(1, 2, 3, 4) if kind == TensorProto.DOUBLE else next(iter(g.shapes))
    g.add("Cast", g.shapes[x], g.net.op("Cast", x, to=kind), to=TensorProto.FLOAT)


STEPS = (
    unary, unary, binary, binary, divided, convolution, convolution, transposed_convolution, pool, global_pool, reduced,
    softmax, normalised, product, turned, reshaped, sliced, joined, padded, resized, chosen, halved_in_parts, gathered,
    through_another_type,
)  # fmt: skip


@st.composite
def graphs(draw: Draw) -> tuple[Net, Shape, list[str]]:
    """A network of one input, its shape, and its outputs: all that nothing reads."""
    g = Drawn(draw)
    shape = tuple(draw(SIZES) for _ in range(draw(st.integers(2, 4))))
    g.shapes[g.net.input(*shape)] = shape
    count = draw(st.integers(2, 12))
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=count, max_size=3 * count)):
        if len(g.net.nodes) >= count:
            break
        if max(np.prod(s) for s in g.shapes.values()) < MOST:
            step(g)
    read = {name for node in g.net.nodes for name in node.input}
    outputs = [name for name in g.shapes if name not in read and name != "x"]
    if not outputs:
        outputs = [g.net.op("Relu", "x")]
    return g.net, shape, outputs


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Within a ten-thousandth of the largest value."""
    limit = 1e-4 * max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)), 1e-3)
    return bool(np.isclose(found, wanted, rtol=1e-3, atol=limit, equal_nan=True).all())


@pytest.mark.sampled(25)
@pytest.mark.parametrize("part", range(50))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=graphs())
def test_graphs_are_computed_as_onnxruntime_computes_them(
    tmp_path_factory: pytest.TempPathFactory, part: int, drawn: tuple[Net, Shape, list[str]]
) -> None:
    net, shape, outputs = drawn
    path = net.save_untyped(tmp_path_factory.mktemp(f"graph{part}") / "net.onnx", *outputs)
    reference = OnnxReference(path)
    assert reference.referee == "onnxruntime"
    inputs = {"x": np.random.default_rng(part).standard_normal(shape).astype(np.float32)}
    wanted, found = reference(inputs), run(fuse(load_onnx(path)), host_target(), inputs)
    for name in outputs:
        assert (found[name].shape, found[name].dtype) == (wanted[name].shape, wanted[name].dtype), name
        assert close(found[name], wanted[name]), name
