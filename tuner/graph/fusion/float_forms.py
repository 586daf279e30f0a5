"""Compute anchors of integers in float32 instead, one by one. Start at `float_form` and `with_floats`.

The anchor's weight and bias become real numbers, in steps of its result. Its data become real numbers by a plain step,
and its result is quantised by another one. Nothing is rounded that the file does not round, and nothing is left
unrounded: the numbers are those that the anchor of integers computes, but for the rounding of float32 itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Var

from templates.epilogue import OPERANDS
from templates.integers import INTEGERS
from templates.workloads import anchor_of
from tuner.graph.fusion.activations import merge_clips
from tuner.graph.fusion.operands import Operands
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, PlainStep, Step
from tuner.graph.ir.simplify import constant
from tuning_db.record import Workload

_LARGEST = 255.0  # value of uint8
_OF_SUMS = ("border", "offset", "real")  # tokens of whole numbers that real numbers need no step for


@dataclass(frozen=True, eq=False)
class _Bytes:
    """The real numbers `factor` times the bytes `values`, plus `constant`."""

    values: Any
    factor: float
    constant: float


@dataclass(frozen=True, eq=False)
class _Sum:
    """The addition of bytes to a quantised result, which is multiplied by `own` before. The sum is quantised with the
    zero point `zero`; if `is_clipped`, it is at least that."""

    own: float
    other: _Bytes
    is_clipped: bool
    zero: float


@dataclass(frozen=True, eq=False)
class FloatForm:
    """Describes how an anchor of integers is computed in float32.

    Its data are steps less their zero point. `unit` times its result are the steps of its own result less `zero`, which
    is None if that result is not quantised. `extras` are the operands of its epilogue; those of "add" may be bytes.
    `behind` is what follows the quantisation.
    """

    workload: Workload
    weight: np.ndarray
    bias: np.ndarray | None
    extras: tuple[Any, ...]
    unit: float = 1.0
    zero: float | None = None
    behind: _Sum | None = None


def float_form(step: AnchorStep) -> FloatForm | None:
    """Return how an anchor of integers is computed in float32. Return None for any other anchor, and if its scales or
    zero points are not known before it runs."""
    if step.workload.dtype != INTEGERS or step.zero is None or "real" not in step.workload.epilogue:
        return None
    reader = _Epilogue(step, step.zero)
    return reader.form() if reader.read() else None


class _Epilogue:
    """Reads the epilogue of an anchor of integers. The scale and the bias at its beginning become part of the weight,
    and the scale at its end the unit of the result."""

    def __init__(self, step: AnchorStep, zero: int) -> None:
        self._step, self._zero = step, zero
        self._scale: np.ndarray = np.ones(len(step.weight))
        self._shift: np.ndarray | None = None
        self._tokens: list[str] = []
        self._extras: list[Any] = []
        self._unit = 1.0
        self._point: float | None = None
        self._bytes: Any = None
        self._behind: _Sum | None = None

    def read(self) -> bool:
        """Read all tokens. Return whether each has a meaning in float32."""
        extras, is_clipped = list(self._step.extras), False
        for text in self._step.workload.epilogue:
            operand = extras.pop(0) if text in OPERANDS and text != "bias" else None
            if self._behind is not None and text == "relu":
                is_clipped = True
            elif self._behind is not None and text == "quantize":
                self._behind = replace(self._behind, is_clipped=is_clipped, zero=_number(operand))
            elif not self._take(text, operand):
                return False
        return self._unit == 1.0 or self._point is not None

    def form(self) -> FloatForm:
        """Return what was read."""
        step, scale = self._step, self._scale.reshape(-1, *[1] * (self._step.weight.ndim - 1))
        tokens, bias = merge_clips(self._tokens), None
        if self._shift is not None:
            tokens, bias = ["bias", *tokens], self._shift.astype(np.float32)
        return FloatForm(
            anchor_of(step.workload).workload(tokens),
            np.ascontiguousarray((step.weight * scale).astype(np.float32)),
            bias,
            tuple(self._extras),
            self._unit,
            self._point,
            self._behind,
        )

    def _take(self, text: str, operand: Any) -> bool:
        known = None if operand is None else constant(operand)
        if text in _OF_SUMS:
            return text != "offset" or self._offset(known)
        if text == "scale":
            return self._scaled(known)
        if text == "quantize":
            self._point = None if known is None else float(known.reshape(-1)[0])
            return self._point is not None
        if text in ("bytes", "add_bytes"):
            return self._added(text, operand, known)
        if text == "window" or self._unit != 1.0:
            return False
        if text == "bias":
            assert self._step.bias is not None
            return not self._tokens and self._add(self._step.bias.astype(np.float64))
        self._tokens.append(text)
        if operand is not None:
            self._extras.append(operand)
        return True

    def _added(self, text: str, operand: Any, known: np.ndarray | None) -> bool:
        """Take the tokens that add bytes, to real numbers or to the quantised result."""
        if text == "bytes":
            self._bytes = operand
            return True
        assert known is not None  # the importer's own numbers
        own, factor, constant = map(float, known)
        other = _Bytes(self._bytes, factor, constant)
        if self._point is not None:
            self._behind = _Sum(own, other, is_clipped=False, zero=0.0)
            return True
        self._tokens.append("add")
        self._extras.append(other)
        return self._unit == 1.0

    def _offset(self, known: np.ndarray | None) -> bool:
        """Take what is added to the sums besides what a zero point adds."""
        if known is None:
            return False
        weight = self._step.weight.astype(np.int64)
        more = known.astype(np.float64) + self._zero * weight.reshape(len(weight), -1).sum(1)
        return not more.any() or self._add(more)

    def _scaled(self, known: np.ndarray | None) -> bool:
        if known is None:
            return False
        factor = known.astype(np.float64)
        if not self._tokens:
            self._scale = self._scale * factor
            self._shift = None if self._shift is None else self._shift * factor
            return True
        if self._unit != 1.0 or np.ptp(factor) or factor[0] <= 0:
            return False
        self._unit = float(factor[0])
        return True

    def _add(self, values: np.ndarray) -> bool:
        self._shift = values if self._shift is None else self._shift + values
        return True


def _number(operand: Any) -> float:
    """Return the only value of a constant."""
    known = constant(operand)
    assert known is not None
    return float(known.reshape(-1)[0])


def with_floats(graph: FusedGraph, chosen: Callable[[AnchorStep], bool]) -> FusedGraph:
    """Return the graph with the anchors of integers in float32 that are `chosen` and have a `float_form`."""
    forms = {s.out: form for s in graph.anchors if chosen(s) and (form := float_form(s)) is not None}
    return _Floats(graph, forms).graph() if forms else graph


class _Floats:
    """Writes the anchors of one graph whose results are in `forms` in float32. `_dequantised` has data as real numbers,
    by their bytes and zero point."""

    def __init__(self, graph: FusedGraph, forms: dict[Var, FloatForm]) -> None:
        self._graph, self._forms = graph, forms
        self._steps: list[Step] = []
        self._dequantised: dict[tuple[Any, int], Var] = {}

    def graph(self) -> FusedGraph:
        for step in self._graph.steps:
            if isinstance(step, AnchorStep) and step.out in self._forms:
                self._write(step, self._forms[step.out])
            else:
                self._steps.append(step)
        return replace(self._graph, steps=tuple(self._steps))

    def _write(self, step: AnchorStep, form: FloatForm) -> None:
        data, out = self._data(step), step.out
        if form.zero is not None:
            out = relax.Var(f"{step.out.name}_real", relax.TensorType(step.out.ty.shape, "float32"))
        extras = tuple(self._real(extra, step) if isinstance(extra, _Bytes) else extra for extra in form.extras)
        changes = {"data": data, "extras": extras, "weight": form.weight, "bias": form.bias}
        self._steps.append(replace(step, workload=form.workload, out=out, zero=None, **changes))
        if form.zero is not None:
            self._quantise(out, form, step)

    def _quantise(self, real: Var, form: FloatForm, step: AnchorStep) -> None:
        """Quantise the real numbers that an anchor has computed."""
        make, steps = Operands(f"{step.out.name}_quantised"), real
        if form.unit != 1.0:
            steps = make.emit(relax.op.multiply(steps, relax.const(form.unit, "float32")))
        steps = _rounded(make, steps, form.zero)
        if form.behind is not None:
            steps = _summed(make, steps, form.behind)
        value = relax.BlockBuilder().normalize(relax.op.astype(steps, INTEGERS))
        self._steps += [*(replace(s, node=step.node) for s in make.steps), PlainStep(step.node, value, step.out)]

    def _real(self, expr: _Bytes, step: AnchorStep) -> Var:
        """Return bytes that an anchor adds as real numbers."""
        make = Operands(f"{step.out.name}_added")
        value = _scaled(make, expr)
        self._steps += [replace(s, node=step.node) for s in make.steps]
        return value

    def _data(self, step: AnchorStep) -> Var:
        """Return the data of an anchor, less their zero point, as real numbers."""
        assert step.zero is not None
        key = step.data, step.zero
        if key not in self._dequantised:
            make = Operands(f"{step.out.name}_data")
            value = make.emit(relax.op.astype(step.data, "float32"))
            if step.zero:
                value = make.emit(relax.op.subtract(value, relax.const(float(step.zero), "float32")))
            self._steps += [replace(s, node=step.node) for s in make.steps]
            self._dequantised[key] = value
        return self._dequantised[key]


def _rounded(make: Operands, steps: Any, zero: float | None) -> Any:
    """Round real numbers to whole steps of uint8, which stay float32."""
    steps = make.emit(relax.op.round(steps))
    if zero:
        steps = make.emit(relax.op.add(steps, relax.const(zero, "float32")))
    return make.emit(relax.op.clip(steps, 0.0, _LARGEST))


def _scaled(make: Operands, expr: _Bytes) -> Var:
    product = make.emit(relax.op.multiply(make.typed(expr.values, "float32"), relax.const(expr.factor, "float32")))
    return make.emit(relax.op.add(product, relax.const(expr.constant, "float32")))


def _summed(make: Operands, steps: Any, behind: _Sum) -> Any:
    """Add bytes to whole steps, and round the sum."""
    own = make.emit(relax.op.multiply(steps, relax.const(behind.own, "float32")))
    total = make.emit(relax.op.add(own, _scaled(make, behind.other)))
    return _rounded(make, make.emit(relax.op.nn.relu(total)) if behind.is_clipped else total, behind.zero)
