"""The operator of attention computes softmax(scale * queries keys^T + mask) values for each head of each batch.

It is the scaled dot-product attention of Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1. Operands
are read from where a network has them, so that nothing has to be transposed or cut out first. Start at `Attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from templates.operator import Operator, TensorSpec, View
from tuning_db.record import Workload

_LARGE = 1e2
_ORDERS = ("btha", "bhta", "bhat")  # of the result's axes: batch, heads, tokens, and what is attended to


class Operand(NamedTuple):
    """An operand lies in a tensor of `size` elements: an element is at `offset`, plus a step for each index.

    The indices are the batch, the head, the token and the element of the token. Of a mask they are the batch, the head,
    the row and the column of the scores, and a step of 0 repeats it.
    """

    size: int
    offset: int
    batch: int
    head: int
    token: int
    element: int

    @classmethod
    def contiguous(cls, batch: int, heads: int, tokens: int, elements: int) -> Operand:
        """Return the place of an operand (batch, heads, tokens, elements)."""
        return cls(batch * heads * tokens * elements, 0, heads * tokens * elements, tokens * elements, elements, 1)

    def at(self, batch: Any, head: Any, token: Any, element: Any) -> Any:
        """Return where an element is, as an int or a TVM expression."""
        steps = zip((batch, head, token, element), self[2:], strict=True)
        return sum((index * step for index, step in steps if step), start=self.offset)

    def read(self, array: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
        """Return the operand, of `shape`, out of the tensor's elements."""
        where = self.at(*np.ix_(*map(range, shape)))
        return array[np.broadcast_to(where, shape)]


@dataclass(frozen=True)
class Attention(View):
    """A workload that has `rows` queries and `columns` keys per head, of `depth` elements, and values of `width`.

    `query`, `key`, `value` and `mask` are an `Operand` each, as a tuple. An empty one is contiguous, and an empty
    `mask` means that there is none. `order` names the result's axes in their order. Raises ValueError for sizes below
    one, an unknown order, and a place that reaches beyond its tensor.
    """

    op = "attention"

    batch: int
    heads: int
    rows: int
    columns: int
    depth: int
    width: int
    scale: float = 1.0
    order: str = "bhta"
    query: tuple[int, ...] = ()
    key: tuple[int, ...] = ()
    value: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("query", "key", "value", "mask"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists
        if min(self.batch, self.heads, self.rows, self.columns, self.depth, self.width) < 1:
            raise ValueError(f"attention: {self} has nothing to attend to")
        if self.order not in _ORDERS:
            raise ValueError(f"attention: the order {self.order!r} is none of {', '.join(_ORDERS)}")
        for name, (place, shape) in self.operands.items():
            last = place.at(*(extent - 1 for extent in shape))
            if not (min(place) >= 0 and last < place.size):
                raise ValueError(f"attention: {name} reaches element {last} of {place.size}")

    @property
    def flop(self) -> float:
        return 2.0 * self.batch * self.heads * self.rows * self.columns * (self.depth + self.width)

    @property
    def operands(self) -> dict[str, tuple[Operand, tuple[int, int, int, int]]]:
        """Return the place and the shape of each operand by its name, in order."""
        outer = self.batch, self.heads
        shapes = {
            "query": (*outer, self.rows, self.depth),
            "key": (*outer, self.columns, self.depth),
            "value": (*outer, self.columns, self.width),
        }
        found = {}
        for name, shape in shapes.items():
            place = getattr(self, name)
            found[name] = (Operand(*place) if place else Operand.contiguous(*shape), shape)
        if self.mask:
            found["mask"] = (Operand(*self.mask), (*outer, self.rows, self.columns))
        return found

    @property
    def result_shape(self) -> tuple[int, ...]:
        extents = {"b": self.batch, "h": self.heads, "t": self.rows, "a": self.width}
        return tuple(extents[axis] for axis in self.order)


class AttentionOperator(Operator):
    """The operator that `Attention` describes, in float64 in NumPy as the reference. Operands are flat tensors."""

    view = Attention

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        operands = Attention.of(workload).operands.items()
        return tuple(TensorSpec(name, (place.size,), workload.dtype) for name, (place, _) in operands)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("attended", Attention.of(workload).result_shape, workload.dtype),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return tuple(rng.standard_normal(spec.shape).astype(spec.dtype) for spec in self.inputs(workload))

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        query, *others = inputs
        yield "large values", (query * query.dtype.type(_LARGE), *others)
        yield "zeros", (np.zeros_like(query), *others)
        place, shape = Attention.of(workload).operands["query"]
        hole = query.copy()
        hole[place.at(*(extent - 1 for extent in shape))] = np.nan
        yield "a NaN", (hole, *others)
        if len(others) > 2 and Attention.of(workload).columns > 1:
            mask = others[2].copy()
            mask[Operand(*Attention.of(workload).mask).at(0, 0, 0, 0)] = -np.inf
            yield "a masked key", (query, *others[:2], mask)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        view = Attention.of(workload)
        given = zip(view.operands.values(), inputs, strict=True)
        query, key, value, *mask = (place.read(x.astype(np.float64), shape) for (place, shape), x in given)
        scores = view.scale * (query @ key.swapaxes(2, 3)) + (mask[0] if mask else 0.0)
        with np.errstate(invalid="ignore"):
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            attended = powers / powers.sum(axis=-1, keepdims=True) @ value
        return (attended.transpose(["bhta".index(axis) for axis in view.order]),)


OPERATOR = AttentionOperator()
