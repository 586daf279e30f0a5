"""The operators of simulated networks: what each reads, and what it costs. Start at `NetworkOperator`; `Builder` makes
them.

Paper 002, section 4: an operator's output has dimensions that can be split. Splitting a "s"ample or "a"ttribute
dimension leaves the weights whole, splitting a "p"arameter dimension splits them too. "-": it is not split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ITEM = 4  # bytes of a float32


class Read(NamedTuple):
    """What part [low, high) of an output dimension needs of one input dimension: [low * stride + shift,
    (high - 1) * stride + shift + extent), as far as the input has it. `dim`: which of the output's; -1: needs all."""

    dim: int
    stride: int = 1
    extent: int = 1
    shift: int = 0


SAME = tuple(Read(i) for i in range(4))
ALL = Read(-1)
IMAGE = -1  # in place of an operator's index


@dataclass(frozen=True)
class NetworkOperator:
    """`shape`: of its output, the sample dimension first; `axes`: a letter for each dimension. `inputs`: indices of the
    operators it reads, `reads` saying for each of them what it needs of each dimension. `flop`: of the forward step;
    `weights`: bytes of parameters, those of all operators of one `layer` being the same. `extra`: bytes that it reads
    and that no operator makes (a network's own input)."""

    name: str
    kind: str
    shape: tuple[int, ...]
    axes: str
    inputs: tuple[int, ...] = ()
    reads: tuple[tuple[Read, ...], ...] = ()
    flop: float = 0.0
    weights: float = 0.0
    layer: str = ""
    extra: float = 0.0

    @property
    def bytes(self) -> int:
        """Of its output."""
        return math.prod(self.shape) * ITEM


@dataclass(frozen=True)
class Network:
    """Operators, each behind those it reads. `branches`: for each the group that paper 004 would put on one device."""

    name: str
    operators: tuple[NetworkOperator, ...]
    branches: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()

    @property
    def flop(self) -> float:
        """Operations of one forward step."""
        return sum(o.flop for o in self.operators)

    @property
    def weights(self) -> float:
        """Bytes, those that are shared once."""
        return sum({o.layer or o.name: o.weights for o in self.operators}.values())


@dataclass
class Builder:
    """Adds operators one after the other; every method returns the new one's index. `branch` and `depth` hold for what
    is added: the group of paper 004, and the layer of a recurrent network from the bottom."""

    batch: int
    operators: list[NetworkOperator] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    branch: str = ""
    depth: int = 0
    picture: tuple[int, ...] = ()

    def network(self, name: str) -> Network:
        return Network(name, tuple(self.operators), tuple(self.branches), tuple(self.depths))

    def shape(self, index: int) -> tuple[int, ...]:
        return self.picture if index == IMAGE else self.operators[index].shape

    def _add(self, operator: NetworkOperator) -> int:
        self.operators.append(operator)
        self.branches.append(self.branch or operator.name)
        self.depths.append(self.depth)
        return len(self.operators) - 1

    def _name(self, name: str) -> str:
        return name or f"op{len(self.operators)}"

    def image(self, channels: int, size: int) -> int:
        """The network's input, which is wherever it is read: it is no operator."""
        self.picture = (self.batch, channels, size, size)
        return IMAGE

    def conv(
        self,
        x: int,
        filters: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        name: str = "",
    ) -> int:
        """A 2-D convolution with bias and activation: rows are an attribute, filters parameters (table 1). Columns, an
        attribute there too, are left out: with samples and filters, rows already give as many parts as there are
        devices, and a cut along both would only send a smaller halo."""
        (kh, kw), (ph, pw) = _pair(kernel), _pair(pad)
        _, channels, height, width = self.shape(x)
        out = (self.batch, filters, (height + 2 * ph - kh) // stride + 1, (width + 2 * pw - kw) // stride + 1)
        taps = channels * kh * kw
        reads = (Read(0), ALL, Read(2, stride, kh, -ph), ALL)
        flop = 2.0 * math.prod(out) * taps
        weights = (taps + 1.0) * filters * ITEM
        if x == IMAGE:
            extra = float(math.prod(self.picture) * ITEM)
            return self._add(
                NetworkOperator(self._name(name), "conv2d", out, "spa-", (), (), flop, weights, extra=extra)
            )
        return self._add(NetworkOperator(self._name(name), "conv2d", out, "spa-", (x,), (reads,), flop, weights))

    def pool(self, x: int, kernel: int, stride: int, pad: int = 0, name: str = "") -> int:
        """Channels and rows are attributes."""
        _, channels, height, width = self.shape(x)
        sizes = [(size + 2 * pad - kernel) // stride + 1 for size in (height, width)]
        out = (self.batch, channels, *sizes)
        reads = (Read(0), Read(1), Read(2, stride, kernel, -pad), ALL)
        flop = float(math.prod(out) * kernel * kernel)
        return self._add(NetworkOperator(self._name(name), "pool", out, "saa-", (x,), (reads,), flop))

    def global_pool(self, x: int, name: str = "") -> int:
        _, channels, height, width = self.shape(x)
        reads = (Read(0), Read(1), ALL, ALL)
        out = (self.batch, channels)
        return self._add(
            NetworkOperator(self._name(name), "pool", out, "sa", (x,), (reads,), float(math.prod(out) * height * width))
        )

    def add(self, x: int, y: int, name: str = "") -> int:
        shape = self.shape(x)
        reads = SAME[: len(shape)]
        return self._add(
            NetworkOperator(self._name(name), "add", shape, "saa-", (x, y), (reads, reads), float(math.prod(shape)))
        )

    def concat(self, parts: Sequence[int], name: str = "") -> int:
        """Along channels, which are an attribute: nothing is computed, everything is moved."""
        _, _, height, width = self.shape(parts[0])
        reads, offset = [], 0
        for part in parts:
            reads.append((Read(0), Read(1, shift=-offset), Read(2), Read(3)))
            offset += self.shape(part)[1]
        out = (self.batch, offset, height, width)
        return self._add(NetworkOperator(self._name(name), "concat", out, "saa-", tuple(parts), tuple(reads)))

    def dense(self, x: int, outputs: int, name: str = "", layer: str = "", kind: str = "matmul") -> int:
        """A matrix multiplication: channels are parameters."""
        before = self.shape(x)
        taps = math.prod(before[1:])
        reads = (Read(0), *[ALL] * (len(before) - 1))
        flop = 2.0 * self.batch * taps * outputs
        weights = (taps + 1.0) * outputs * ITEM
        return self._add(
            NetworkOperator(self._name(name), kind, (self.batch, outputs), "sp", (x,), (reads,), flop, weights, layer)
        )

    def embed(self, vocabulary: int, size: int, name: str = "", layer: str = "") -> int:
        """A look-up: columns of the table are parameters."""
        weights = float(vocabulary * size * ITEM)
        shape = (self.batch, size)
        return self._add(
            NetworkOperator(
                self._name(name),
                "embed",
                shape,
                "sp",
                (),
                (),
                float(self.batch * size),
                weights,
                layer,
                self.batch * 4.0,
            )
        )

    def lstm(self, x: int, hidden: int, state: int | None, *, name: str = "", layer: str = "") -> int:
        """One step of a layer: it reads what is below and its own state before; hidden units are parameters."""
        width = self.shape(x)[1] + hidden
        inputs = (x,) if state is None else (x, state)
        reads = tuple((Read(0), ALL) for _ in inputs)
        flop, weights = 8.0 * self.batch * hidden * width, 4.0 * hidden * (width + 1) * ITEM
        return self._add(
            NetworkOperator(self._name(name), "lstm", (self.batch, hidden), "sp", inputs, reads, flop, weights, layer)
        )

    def stack(self, parts: Sequence[int], name: str = "") -> int:
        """Vectors one below the other: nothing is computed."""
        out = (self.batch, len(parts), self.shape(parts[0])[1])
        reads = tuple((Read(0), Read(2)) for _ in parts)
        return self._add(NetworkOperator(self._name(name), "stack", out, "s-a", tuple(parts), reads))

    def attention(self, query: int, states: int, name: str = "", layer: str = "") -> int:
        """Of one decoder step over the encoder's stacked states (multiplicative), then a layer over both."""
        _, length, hidden = self.shape(states)
        inputs = (query, states)
        reads = ((Read(0), ALL), (Read(0), ALL, ALL))
        flop = self.batch * (4.0 * length * hidden + 2.0 * 2 * hidden * hidden)
        weights = 2.0 * hidden * hidden * ITEM
        return self._add(
            NetworkOperator(
                self._name(name), "attention", (self.batch, hidden), "sp", inputs, reads, flop, weights, layer
            )
        )


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
