"""Templates of attention share these pieces, which read operands and finish a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from templates.attention import Attention
from templates.stages import widened, zero


@dataclass(frozen=True)
class Given:
    """Holds a workload's operands as flat tensors, or as other objects that are indexed to be read.

    Indices begin with `g`, the head among those of all batches. Halves that are read become float32 if `widens`.
    """

    view: Attention
    tensors: Mapping[str, Any]
    widens: bool = True

    @classmethod
    def of(cls, view: Attention, dtype: str = "float32") -> Given:
        """Return placeholders of `dtype` for a workload's operands."""
        sizes = {name: place.size for name, (place, _) in view.operands.items()}
        return cls(view, {name: te.placeholder((size,), dtype, name) for name, size in sizes.items()})

    def read(self, name: str, g: Any, token: Any, element: Any) -> Any:
        """Return an element of an operand."""
        place, _ = self.view.operands[name]
        found = self.tensors[name][place.at(g // self.view.heads, g % self.view.heads, token, element)]
        return widened(found) if self.widens else tirx.convert(found)

    def key(self, g: Any, j: Any, d: Any, *, padded: int) -> Any:
        """Return an element of a key, or 0 beyond the last of `padded` keys."""
        value = self.read("key", g, j, d)
        if padded == self.view.columns:
            return value
        return tirx.if_then_else(j < self.view.columns, value, zero(str(value.ty.dtype)))

    def value(self, g: Any, j: Any, e: Any, *, padded: tuple[int, int]) -> Any:
        """Return an element of a value, or 0 beyond the last of `padded` values and elements."""
        there = self.view.columns, self.view.width
        inside = [index < n for index, n, p in zip((j, e), there, padded, strict=True) if n < p]
        value = self.read("value", g, j, e)
        return tirx.if_then_else(tirx.all(*inside), value, zero(str(value.ty.dtype))) if inside else value

    def result_at(self, index: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return the head, the row and the element that an index of the result, in the workload's order, stands for."""
        at = dict(zip(self.view.order, index, strict=True))
        return at["b"] * self.view.heads + at["h"], at["t"], at["a"]


def masked(given: Given, product: Any, at: tuple[Any, Any, Any], *, padded: int) -> Any:
    """Return the score at (g, i, j) of a product of a query and a key; it is -inf beyond the last of `padded` keys."""
    view, (g, i, j) = given.view, at
    score = product if view.scale == 1 else product * tirx.const(view.scale, "float32")
    last = view.columns - 1
    if view.mask:
        score = score + given.read("mask", g, i, j if padded == view.columns else tirx.min(j, last))
    return score if padded == view.columns else tirx.Select(j <= last, score, tirx.const(float("-inf"), "float32"))
