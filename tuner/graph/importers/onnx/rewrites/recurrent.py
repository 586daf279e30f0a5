"""Write the recurrent layers of ONNX (RNN, GRU, LSTM) and onnxruntime's DynamicQuantizeLSTM out. Start at `RECURRENT`.

One product multiplies the inputs of all steps with their weights. Layers with the usual gates then have one node with
the loop over the steps (`loops`). All others are written out step by step: each has a product of the state with the
weights of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from tuner.graph.importers.onnx.rewrites.loops import Gates, loop_of
from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, Rewrite, Unwritable, attributes_of, operand

_MOST_STEPS = 2048  # a longer sequence would become tens of thousands of kernels
_QUANTIZED = "DynamicQuantizeLSTM"
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_FUNCTIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


_End = tuple[list[str], str, str]  # the states after every step, the last state, the last cells


@dataclass(frozen=True)
class _Layer:
    """One direction of a layer, whose weights are constants.

    W is (gates * hidden, inputs), R is (gates * hidden, hidden), the biases of both are (gates * hidden), and the
    peepholes are (3 * hidden) or None. `functions` are the activation functions of its gates. If the `scales` of W and
    of R are given, W and R are in whole quantisation steps, and what they are multiplied with is first quantised by its
    range.
    """

    writer: NodeWriter
    kind: str
    attrs: Mapping[str, Any]
    w: np.ndarray
    r: np.ndarray
    bias_w: np.ndarray
    bias_r: np.ndarray
    peepholes: np.ndarray | None
    functions: Sequence[Callable[[str], str]]
    scales: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def hidden(self) -> int:
        return int(self.r.shape[1])

    def projected(self, x: str, steps: int, batch: int) -> list[str]:
        """Return, for every step, the product of its inputs with W, (batch, gates * hidden). All biases that can be
        added to it beforehand are included."""
        add, gates = self.writer, len(self.w)
        bias = self.bias_w + self.bias_r
        if self.kind == "GRU" and self.attrs.get("linear_before_reset", 0):
            bias = np.concatenate([bias[: 2 * self.hidden], self.bias_w[2 * self.hidden :]])
        rows = add.reshape(x, (steps * batch, self.w.shape[1]))
        if self.scales is None:
            whole = add.add("Gemm", rows, add.constant(self.w), add.constant(bias), transB=1)
        else:
            whole = add.add("Add", self._steps_product(rows, self.w, self.scales[0]), add.constant(bias))
        parts = add.split(add.reshape(whole, (steps, batch, gates)), 0, [1] * steps)
        return [add.reshape(part, (batch, gates)) for part in parts]

    def step(self, x: str, h: str, c: str) -> tuple[str, str]:
        """Return the next state and cells from the projected inputs `x`, the last state `h` and the last cells `c`."""
        return {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.kind](x, h, c)

    def _steps_product(self, x: str, w: np.ndarray, scale: np.ndarray) -> str:
        """Return the product of `x`, which is quantised first, with a weight in whole quantisation steps."""
        add = self.writer.add
        quantized, step, zero = self.writer.add_many("DynamicQuantizeLinear", [x], 3)
        kind = onnx.TensorProto.FLOAT
        whole = add("Sub", self.writer.cast(quantized, kind), self.writer.cast(zero, kind))
        sums = add("MatMul", whole, self.writer.constant(np.ascontiguousarray(w.T)))
        return add("Mul", sums, add("Mul", step, self.writer.constant(scale)))

    def _product(self, h: str, r: np.ndarray) -> str:
        if self.scales is not None:
            return self._steps_product(h, r, self.scales[1])
        return self.writer.add("MatMul", h, self.writer.constant(np.ascontiguousarray(r.T)))

    def _clipped(self, x: str) -> str:
        limit = self.attrs.get("clip", 0.0)
        if not limit:
            return x
        low, high = (self.writer.constant(v, self.w.dtype) for v in (-limit, limit))
        return self.writer.add("Max", self.writer.add("Min", x, high), low)

    def _rnn(self, x: str, h: str, c: str) -> tuple[str, str]:
        (f,) = self.functions
        return f(self._clipped(self.writer.add("Add", x, self._product(h, self.r)))), c

    def _gru(self, x: str, h: str, c: str) -> tuple[str, str]:
        add, n = self.writer.add, self.hidden
        f, g = self.functions
        if self.attrs.get("linear_before_reset", 0):
            given_zr, given = self.writer.split(x, 1, [2 * n, n])
            state_zr, state = self.writer.split(self._product(h, self.r), 1, [2 * n, n])
            z, r = self.writer.split(f(self._clipped(add("Add", given_zr, state_zr))), 1, [n, n])
            state = add("Add", state, self.writer.constant(self.bias_r[2 * n :]))
            new = g(self._clipped(add("Add", given, add("Mul", r, state))))
        else:
            given_zr, given = self.writer.split(x, 1, [2 * n, n])
            state_zr = self._product(h, self.r[: 2 * n])
            z, r = self.writer.split(f(self._clipped(add("Add", given_zr, state_zr))), 1, [n, n])
            new = g(self._clipped(add("Add", given, self._product(add("Mul", r, h), self.r[2 * n :]))))
        return add("Add", new, add("Mul", z, add("Sub", h, new))), c

    def _lstm(self, x: str, h: str, c: str) -> tuple[str, str]:
        add, n = self.writer.add, self.hidden
        f, g, last = self.functions
        i, o, forget, new = self.writer.split(add("Add", x, self._product(h, self.r)), 1, [n] * 4)
        if self.peepholes is not None:
            p_i, p_o, p_f = (self.writer.constant(p) for p in np.split(self.peepholes, 3))
            i = add("Add", i, add("Mul", p_i, c))
            forget = add("Add", forget, add("Mul", p_f, c))
        i, new = f(self._clipped(i)), g(self._clipped(new))
        if self.attrs.get("input_forget", 0):
            forget = add("Sub", self.writer.constant(1.0, self.w.dtype), i)
        else:
            forget = f(self._clipped(forget))
        c = add("Add", add("Mul", forget, c), add("Mul", i, new))
        if self.peepholes is not None:
            o = add("Add", o, add("Mul", p_o, c))
        return add("Mul", f(self._clipped(o)), last(c)), c


def _write_recurrent(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write out every direction, and join their results."""
    attrs, shape = attributes_of(node), writer.shape(node.input[0])
    by_batch = attrs.get("layout", 0)
    if shape is None:
        return None
    steps, batch = shape[by_batch], shape[1 - by_batch]
    x = writer.add("Transpose", node.input[0], perm=[1, 0, 2]) if by_batch else node.input[0]
    layers = _layers(writer, node, attrs)
    valid = _valid(writer, operand(node, 4), steps, batch)
    hidden, kind = layers[0].hidden, layers[0].w.dtype
    states = [
        _initial(writer, operand(node, i), (len(layers), batch, hidden), by_batch=by_batch, dtype=kind) for i in (5, 6)
    ]
    directions = attrs.get("direction", "forward")
    gates = None if valid is not None else _usual_gates(layers, attrs)
    if gates is not None:
        whole, *last = loop_of(writer, gates, x, (steps, batch), states, reverse=directions == "reverse")
        return _in_layout(writer, whole, last, (batch, hidden), by_batch)
    if steps > _MOST_STEPS:
        raise Unwritable(f"its sequence has {steps} steps, and more than {_MOST_STEPS} are not written out")
    ends: list[_End] = []
    for i, layer in enumerate(layers):
        order = range(steps - 1, -1, -1) if directions == "reverse" or i == 1 else range(steps)
        ends.append(
            _run(layer, layer.projected(x, steps, batch), (states[0][i], states[1][i]), valid=valid, order=order)
        )
    return _results(writer, ends, (steps, len(layers), batch, hidden), by_batch)


def _run(
    layer: _Layer, given: Sequence[str], state: tuple[str, str], *, valid: Sequence[str] | None, order: Sequence[int]
) -> _End:
    """Return the states after every step, in the order of the inputs, the last state, and the last cells. Where a
    sequence has ended, its state stays, and its output is zero."""
    writer, (h, c) = layer.writer, state
    outputs = [""] * len(given)
    for at in order:
        new_h, new_c = layer.step(given[at], h, c)
        if valid is None:
            h, c = new_h, new_c
            outputs[at] = h
            continue
        h = writer.add("Where", valid[at], new_h, h)
        c = writer.add("Where", valid[at], new_c, c) if new_c != c else c
        outputs[at] = writer.add("Where", valid[at], new_h, writer.constant(0.0, layer.w.dtype))
    return outputs, h, c


def _usual_gates(layers: Sequence[_Layer], attrs: Mapping[str, Any]) -> Gates | None:
    """Return the weights of all directions of a layer that computes what the operator `recurrent` does, or None."""
    kind, count = layers[0].kind, _GATES[layers[0].kind]
    names = [name.lower() for name in attrs.get("activations") or ()]
    unusual = (
        any(layer.peepholes is not None for layer in layers),
        names and names != [name.lower() for name in _FUNCTIONS[kind]] * len(layers),
        attrs.get("clip", 0.0) or attrs.get("input_forget", 0),
        kind == "GRU" and not attrs.get("linear_before_reset", 0),
        layers[0].w.dtype != np.float32,
    )
    if any(unusual):
        return None

    def stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([part.reshape(count, -1, *part.shape[1:]) for part in parts])

    rows = len(layers[0].r)
    steps = [layer.scales for layer in layers if layer.scales is not None]
    scales = [stacked([np.broadcast_to(of[i], (rows,)) for of in steps]) for i in (0, 1) if steps]
    return Gates(
        kind.lower(),
        stacked([layer.w for layer in layers]),
        stacked([layer.r for layer in layers]),
        stacked([layer.bias_w for layer in layers]),
        stacked([layer.bias_r for layer in layers]),
        (scales[0], scales[1]) if scales else None,
    )


def _results(writer: NodeWriter, ends: Sequence[_End], sizes: tuple[int, int, int, int], by_batch: int) -> list[str]:
    """Return the states of all steps, the last states and the last cells of all directions, in the requested layout."""
    steps, directions, batch, hidden = sizes
    rows = [writer.reshape(outputs[t], (1, 1, batch, hidden)) for t in range(steps) for outputs, _, _ in ends]
    whole = writer.reshape(_joined(writer, rows), (steps, directions, batch, hidden))
    return _in_layout(writer, whole, ([end[1] for end in ends], [end[2] for end in ends]), (batch, hidden), by_batch)


def _in_layout(
    writer: NodeWriter, whole: str, last: Sequence[Sequence[str]], shape: tuple[int, int], by_batch: int
) -> list[str]:
    """Return the states of all steps, and the last states and cells of all directions as one tensor each, in the
    requested layout. `shape` is that of a direction's last states. A layer without cells has none."""
    stacked = [_joined(writer, [writer.reshape(part, (1, *shape)) for part in parts]) for parts in last if parts]
    if by_batch:
        whole = writer.add("Transpose", whole, perm=[2, 0, 1, 3])
        stacked = [writer.add("Transpose", x, perm=[1, 0, 2]) for x in stacked]
    return [whole, *stacked]


def _joined(writer: NodeWriter, parts: Sequence[str]) -> str:
    return writer.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]


def _layers(writer: NodeWriter, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> list[_Layer]:
    """Return the directions of a layer. Raises Unwritable if weights are computed, or an activation is unknown."""
    constants: dict[int, np.ndarray] = {}
    for i in (1, 2, 3, 7, 8, 9, 10, 11):
        value = writer.value(operand(node, i)) if operand(node, i) else None
        if operand(node, i) and value is None:
            raise Unwritable("its weights are computed, not constants")
        if value is not None:
            constants[i] = value
    kind, scales, w, r = node.op_type, None, constants[1], constants[2]
    if kind == _QUANTIZED:
        kind, scales = "LSTM", (constants[8], constants[10])
        w, r = _whole_steps(w, constants.get(9)), _whole_steps(r, constants.get(11))
    count, half = len(_FUNCTIONS[kind]), _GATES[kind] * r.shape[2]
    functions = _activations(writer, attrs.get("activations") or _FUNCTIONS[kind] * len(w), attrs, w.dtype)
    if len(functions) < count * len(w):
        raise Unwritable(f"of its activations {', '.join(attrs['activations'])} one is unknown")
    b, p = constants.get(3), constants.get(7)
    layers = []
    for i in range(len(w)):
        biases = np.zeros(2 * half, w.dtype) if b is None else b[i]
        chosen = functions[i * count : (i + 1) * count]
        layer = _Layer(
            writer, kind, attrs, w[i], r[i], biases[:half], biases[half:], None if p is None else p[i], chosen
        )
        layers.append(layer if scales is None else replace(layer, scales=(scales[0][i], scales[1][i])))
    return layers


def _whole_steps(weight: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """Return quantised weights (directions, inputs, gates * hidden) less their zero points, in the order of an LSTM's,
    which is (directions, gates * hidden, inputs)."""
    wide = weight.astype(np.float32)
    if zero is not None:
        wide = wide - zero.astype(np.float32).reshape(len(weight), 1, -1)
    return np.ascontiguousarray(wide.transpose(0, 2, 1))


def _activations(
    writer: NodeWriter, names: Sequence[str], attrs: Mapping[str, Any], dtype: Any
) -> list[Callable[[str], str]]:
    """Return the functions that have the given ONNX names. Functions with parameters take theirs, in order, from the
    attributes. The result ends before the first unknown name."""
    alphas, betas = list(attrs.get("activation_alpha", ())), list(attrs.get("activation_beta", ()))

    def affine(a: float, b: float) -> Callable[[str], str]:
        return lambda x: writer.add("Add", writer.add("Mul", x, writer.constant(a, dtype)), writer.constant(b, dtype))

    def scaled(a: float, b: float) -> Callable[[str], str]:
        def function(x: str) -> str:
            inner = writer.add("Tanh", writer.add("Mul", x, writer.constant(b, dtype)))
            return writer.add("Mul", inner, writer.constant(a, dtype))

        return function

    def plain(kind: str, **given: float) -> Callable[[str], str]:
        return lambda x: writer.add(kind, x, **given)

    def taken(values: list[float], default: float) -> float:
        return values.pop(0) if values else default

    found: list[Callable[[str], str]] = []
    for name in names:
        title = {n.lower(): n for n in (*_PLAIN, *_WITH_ALPHA, "HardSigmoid", "Affine", "ScaledTanh")}.get(name.lower())
        if title in _PLAIN:
            found.append(plain(title))
        elif title in _WITH_ALPHA:
            found.append(plain(title, alpha=taken(alphas, _WITH_ALPHA[title])))
        elif title == "HardSigmoid":
            found.append(plain(title, alpha=taken(alphas, 0.2), beta=taken(betas, 0.5)))
        elif title is not None:
            make = affine if title == "Affine" else scaled
            found.append(make(taken(alphas, 1.0), taken(betas, 0.0 if title == "Affine" else 1.0)))
        else:
            break
    return found


_PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")
_WITH_ALPHA = {"LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "Elu": 1.0}


def _valid(writer: NodeWriter, lengths: str, steps: int, batch: int) -> list[str] | None:
    """Return, for every step, which sequences have not ended, as truth values (batch, 1). Return None if all sequences
    have all steps."""
    value = writer.value(lengths) if lengths else None
    if not lengths or (value is not None and (value >= steps).all()):
        return None
    column = writer.reshape(writer.cast(lengths, onnx.TensorProto.INT64), (batch, 1))
    return [writer.add("Less", writer.constant(t, np.int64), column) for t in range(steps)]


def _initial(writer: NodeWriter, name: str, shape: tuple[int, int, int], *, by_batch: int, dtype: Any) -> list[str]:
    """Return the first state of every direction, (batch, hidden). It is zero if none is given."""
    if not name:
        return [writer.constant(np.zeros(shape[1:], dtype))] * shape[0]
    whole = writer.add("Transpose", name, perm=[1, 0, 2]) if by_batch else name
    return [writer.reshape(part, shape[1:]) for part in writer.split(whole, 0, [1] * shape[0])]


RECURRENT: dict[tuple[str, str], Rewrite] = {
    **{("", kind): _write_recurrent for kind in _GATES},
    ("com.microsoft", _QUANTIZED): _write_recurrent,
}
