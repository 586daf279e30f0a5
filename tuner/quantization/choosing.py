"""Choose the operators of a network that are computed in integers, so that its results stay within bounds. Start at
`choose`.

Each operator is first quantised alone, and the SQNR of the network's outputs says what that costs. Then all are, and
where the bounds are missed, those that cost most stay in float: as few as keep the bounds, by bisection of the ranked
list, so that ten measurements are enough for a thousand operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import TensorsData

from tuner.activity import activity
from tuner.errors import BadInput, last_line
from tuner.quantization.judging import Judge, Quality
from tuner.quantization.operators import NO_READER, Network, Operator
from tuner.quantization.writing import quantised_model

_SENSITIVITY_SAMPLES = 8  # an operator's cost is measured on; the bounds are measured on all
_BOUND = "kept by the bound: in integers it costs most"


@dataclass(frozen=True)
class Bounds:
    """The least quality that is accepted: `max_drop` in percentage points of top-1, `min_sqnr` in decibels. None means
    that there is no such bound."""

    max_drop: float | None = None
    min_sqnr: float | None = None

    def kept(self, found: Quality, exact: Quality) -> bool:
        """Tell whether a network is as good as wanted. `exact` is the quality of the float one."""
        if self.min_sqnr is not None and found.sqnr < self.min_sqnr:
            return False
        if self.max_drop is None or found.top1 is None or exact.top1 is None:
            return True
        return exact.top1 - found.top1 <= self.max_drop + 1e-9


@dataclass(frozen=True)
class Judged:
    """An operator, the SQNR of the outputs in decibels if it is quantised alone (None if it was not tried), and why it
    stays in float; that is empty if it is computed in integers."""

    operator: Operator
    sqnr: float | None
    why_float: str = ""


@dataclass(frozen=True)
class Variant:
    """A network that was measured: how many of the operators that cost most are in float, how many work on integers,
    which share of all multiply-adds is done in integers, and how good it is."""

    in_float: int
    in_integers: int
    share: float
    quality: Quality


@dataclass(frozen=True)
class Choice:
    """The operators in the order of the nodes, all variants that were measured, and the chosen one with its model.
    `exact` is the quality of the float network. write(variant) makes the model of any variant."""

    operators: tuple[Judged, ...]
    variants: tuple[Variant, ...]
    chosen: Variant
    exact: Quality
    model: onnx.ModelProto = field(repr=False)
    write: Callable[[Variant], onnx.ModelProto] = field(repr=False)


def choose(
    model: onnx.ModelProto,
    ranges: TensorsData,
    judge: Judge,
    bounds: Bounds,
    *,
    curve: int = 0,
) -> Choice:
    """Return the network with as few operators in float as the bounds allow.

    `model` is a prepared network (`prepare.prepare`), `ranges` those of its values. With a `curve`, so many variants
    are measured besides those that the bounds need, evenly spread over the ranked list.

    Raises BadInput if no operator can be quantised within the bounds, or at all.
    """
    return _Chooser(model, ranges, judge, bounds).choose(curve)


class _Chooser:
    """Measures variants of one network, each once."""

    def __init__(self, model: onnx.ModelProto, ranges: TensorsData, judge: Judge, bounds: Bounds) -> None:
        self._model, self._ranges, self._judge, self._bounds = model, ranges, judge, bounds
        self._network = Network(model)
        self._variants: dict[int, Variant] = {}
        self._ranked: list[str] = []

    def choose(self, curve: int) -> Choice:
        operators = self._network.operators
        usable = [op.name for op in operators if not op.obstacle]
        possible = self._network.quantised(usable)
        names = [name for name in usable if name in possible]
        if not names:
            raise BadInput("the network has no convolution or dense layer that could be computed in integers")
        costs = self._costs(names)
        self._ranked = sorted(names, key=lambda name: costs[name])
        exact = self._judge.of_float()
        count = self._fewest(exact)
        for extra in np.linspace(0, len(names) - 1, curve).round().astype(int).tolist():
            self._variant(extra)
        chosen = self._network.quantised(self._ranked[count:])
        judged = tuple(Judged(op, costs.get(op.name), self._why(op, chosen, self._ranked[:count])) for op in operators)
        variants = tuple(self._variants[key] for key in sorted(self._variants))
        return Choice(judged, variants, self._variants[count], exact, self._written(chosen), self._write)

    def _costs(self, names: Sequence[str]) -> dict[str, float]:
        """Return the SQNR of the outputs if each of these operators is quantised alone, in decibels."""
        few = range(min(_SENSITIVITY_SAMPLES, len(self._judge)))
        costs: dict[str, float] = {}
        with activity("quantising each operator alone", len(names)) as done:
            for name in names:
                done(len(costs))
                costs[name] = self._quality({name}, few).sqnr
        return costs

    def _fewest(self, exact: Quality) -> int:
        """Return the least number of operators in float that keeps the bounds, if more are never worse."""
        bad, good = -1, len(self._ranked)
        while good - bad > 1:
            middle = 0 if bad < 0 and good == len(self._ranked) else (bad + good) // 2
            if self._bounds.kept(self._variant(middle).quality, exact):
                good = middle
            else:
                bad = middle
        if good == len(self._ranked) or not self._variant(good).in_integers:
            best = max((v for v in self._variants.values() if v.in_integers), key=lambda v: v.in_float)
            told = f"{best.quality.sqnr:.1f} dB"
            told += "" if best.quality.top1 is None else f" and {best.quality.top1:.2f} % top-1"
            raise BadInput(
                f"the bound is missed with {best.in_integers} operator(s) in integers already ({told}): allow more "
                "loss, give more samples, or try another --method"
            )
        return good

    def _variant(self, in_float: int) -> Variant:
        """Measure the network with so many of the operators that cost most in float."""
        if in_float not in self._variants:
            nodes = self._network.quantised(self._ranked[in_float:])
            with activity(f"judging the network with {in_float} operators kept in float"):
                quality = self._quality(nodes, None)
            whole = [op for op in self._network.operators if op.name in nodes]
            all_adds = sum(op.multiply_adds for op in self._network.operators)
            share = sum(op.multiply_adds for op in whole) / max(all_adds, 1)
            self._variants[in_float] = Variant(in_float, len(whole), share, quality)
        return self._variants[in_float]

    def _write(self, variant: Variant) -> onnx.ModelProto:
        return self._written(self._network.quantised(self._ranked[variant.in_float :]))

    def _quality(self, nodes: set[str], indices: Sequence[int] | None) -> Quality:
        return self._judge.quality(self._judge.open(self._written(nodes)), indices)

    def _written(self, nodes: set[str]) -> onnx.ModelProto:
        try:
            return quantised_model(self._model, self._ranges, nodes)
        except Exception as error:  # onnxruntime's quantizer raises many types of errors
            raise BadInput(f"onnxruntime's quantizer cannot write the network ({last_line(error)})") from error

    def _why(self, operator: Operator, chosen: set[str], kept: Sequence[str]) -> str:
        """Say why an operator stays in float, or return an empty text."""
        if operator.name in chosen:
            return ""
        return operator.obstacle or (_BOUND if operator.name in kept else NO_READER)
