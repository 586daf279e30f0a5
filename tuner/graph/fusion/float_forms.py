"""Compute anchors of integers in float32 instead, one by one. Start at `float_form` and `with_floats`.

The anchor's weight and bias become real numbers, in steps of its result. Its data become real numbers by a plain step,
and its result is quantised by another one, as the file says. If an anchor in float32 reads what another one computed in
float32, it reads the real numbers, which were clipped as a quantisation clips them, but not rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Var

from templates.epilogue import OPERANDS, token
from templates.integers import INTEGERS
from templates.workloads import anchor_of
from tuner.graph.fusion.activations import merge_clips
from tuner.graph.fusion.operands import Operands
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, PlainStep, Step, alive_steps
from tuner.graph.ir.simplify import constant
from tuning_db.record import Workload

_LARGEST = 255.0  # value of uint8
_OF_SUMS = ("border", "offset", "real")  # tokens of whole numbers that real numbers need no step for


@dataclass(frozen=True, eq=False)
class FloatForm:
    """Describes how an anchor of integers is computed in float32.

    Its data are steps less their zero point. `unit` times its result are the steps of its own result less `zero`, which
    is None if that result is not quantised. `extras` are the operands of its epilogue.
    """

    workload: Workload
    weight: np.ndarray
    bias: np.ndarray | None
    extras: tuple[Any, ...]
    unit: float = 1.0
    zero: float | None = None

    @property
    def clipped(self) -> Workload:
        """Return the workload whose result is clipped as its quantisation clips it."""
        if self.zero is None:
            return self.workload
        bounds = token("clip", (0.0 - self.zero) / self.unit, (_LARGEST - self.zero) / self.unit)
        return replace(self.workload, epilogue=tuple(merge_clips([*self.workload.epilogue, bounds])))


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

    def read(self) -> bool:
        """Read all tokens. Return whether each has a meaning in float32."""
        extras = list(self._step.extras)
        for text in self._step.workload.epilogue:
            operand = extras.pop(0) if text in OPERANDS and text != "bias" else None
            if not self._take(text, operand):
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
        if text == "window" or self._unit != 1.0:
            return False
        if text == "bias":
            assert self._step.bias is not None
            return not self._tokens and self._add(self._step.bias.astype(np.float64))
        self._tokens.append(text)
        if operand is not None:
            self._extras.append(operand)
        return True

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


def with_floats(graph: FusedGraph, chosen: Callable[[AnchorStep], bool]) -> FusedGraph:
    """Return the graph with the anchors of integers in float32 that are `chosen` and have a `float_form`."""
    forms = {s.out: form for s in graph.anchors if chosen(s) and (form := float_form(s)) is not None}
    return _Floats(graph, forms).graph() if forms else graph


class _Floats:
    """Writes the anchors of one graph whose results are in `forms` in float32. `_real` has the real numbers of what
    these quantise, and `_dequantised` those of what others do, with their zero point."""

    def __init__(self, graph: FusedGraph, forms: dict[Var, FloatForm]) -> None:
        self._graph, self._forms = graph, forms
        self._steps: list[Step] = []
        self._real: dict[Var, Var] = {}
        self._dequantised: dict[tuple[Any, int], Var] = {}
        self._read = {s.data for s in graph.anchors if s.out in forms}

    def graph(self) -> FusedGraph:
        for step in self._graph.steps:
            if isinstance(step, AnchorStep) and step.out in self._forms:
                self._write(step, self._forms[step.out])
            else:
                self._steps.append(step)
        outputs = self._graph.outputs
        return replace(self._graph, steps=alive_steps(self._steps, outputs))

    def _write(self, step: AnchorStep, form: FloatForm) -> None:
        data, unit = self._data(step)
        is_read = form.zero is not None and step.out in self._read
        real = step.out if form.zero is None else _real_variable(step.out)
        anchor = replace(
            step,
            workload=form.clipped if is_read else form.workload,
            data=data,
            extras=form.extras,
            weight=form.weight if unit == 1.0 else (form.weight * np.float64(unit)).astype(np.float32),
            bias=form.bias,
            out=real,
            zero=None,
        )
        self._steps.append(anchor)
        if form.zero is None:
            return
        if is_read:
            self._real[step.out] = real
        make = Operands(f"{step.out.name}_quantised")
        self._quantise(make, real, form, step)

    def _quantise(self, make: Operands, real: Var, form: FloatForm, step: AnchorStep) -> None:
        """Quantise the real numbers that an anchor has computed."""
        steps: Any = real
        if form.unit != 1.0:
            steps = make.emit(relax.op.multiply(steps, relax.const(form.unit, "float32")))
        steps = make.emit(relax.op.round(steps))
        if form.zero:
            steps = make.emit(relax.op.add(steps, relax.const(form.zero, "float32")))
        steps = make.emit(relax.op.clip(steps, 0.0, _LARGEST))
        value = relax.BlockBuilder().normalize(relax.op.astype(steps, INTEGERS))
        named = [replace(plain, node=step.node) for plain in make.steps]
        self._steps += [*named, PlainStep(step.node, value, step.out)]

    def _data(self, step: AnchorStep) -> tuple[Var, float]:
        """Return the data of an anchor as real numbers, and how many steps one of them stands for."""
        source = self._forms.get(step.data) if isinstance(step.data, Var) else None
        if source is not None and step.data in self._real and source.zero == step.zero:
            return self._real[step.data], source.unit
        assert step.zero is not None
        key = step.data, step.zero
        if key not in self._dequantised:
            make = Operands(f"{step.out.name}_data")
            value = make.emit(relax.op.astype(step.data, "float32"))
            if step.zero:
                value = make.emit(relax.op.subtract(value, relax.const(float(step.zero), "float32")))
            self._steps += [replace(plain, node=step.node) for plain in make.steps]
            self._dequantised[key] = value
        return self._dequantised[key], 1.0


def _real_variable(var: Var) -> Var:
    return relax.Var(f"{var.name}_real", relax.TensorType(var.ty.shape, "float32"))
