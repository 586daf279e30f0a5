"""Defines the operators of simulated networks: what each one reads and what it costs. Start at `NetworkOperator`;
`Builder` makes them.

In Jia, Zaharia and Aiken ("Beyond Data and Model Parallelism for Deep Neural Networks", section 4), an operator's
output has dimensions that can be split. Splitting a "s"ample or "a"ttribute dimension leaves the weights whole, and
splitting a "p"arameter dimension splits them too. A dimension marked "-" is not split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ITEM = 4  # bytes of a float32


class Read(NamedTuple):
    """A rule that says what a part [low, high) of an output dimension needs of one input dimension.

    That is [low * stride + shift, (high - 1) * stride + shift + extent), as far as the input has it.
    `dim` is the index of the output dimension; -1
    means that every part needs all of the input dimension.
    """

    dim: int
    stride: int = 1
    extent: int = 1
    shift: int = 0


SAME = tuple(Read(i) for i in range(4))
ALL = Read(-1)
IMAGE = -1  # in place of an operator's index


@dataclass(frozen=True)
class NetworkOperator:
    """Describes an operator of a simulated network.

    - `shape` is that of its output, with the sample dimension first, and `axes` has a letter for each dimension.
    - `inputs` holds the indices of the operators it reads; `reads` says for each what it needs of every dimension.
    - `flop` counts the forward step.
    - `weights` is the bytes of its parameters. Operators of one `layer` share the same parameters.
    - `extra` is the bytes that it reads and that no operator makes: a network's own input.
    """

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
        """Return the bytes of the output."""
        return math.prod(self.shape) * ITEM


@dataclass(frozen=True)
class Network:
    """A list of operators in which each comes after those that it reads. `branches` names for each operator the group
    that Mirhoseini et al. would put on one device."""

    name: str
    operators: tuple[NetworkOperator, ...]
    branches: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()

    @property
    def flop(self) -> float:
        """Return the operations of one forward step."""
        return sum(o.flop for o in self.operators)

    @property
    def weights(self) -> float:
        """Return the bytes of all parameters; shared ones count once."""
        return sum({o.layer or o.name: o.weights for o in self.operators}.values())


@dataclass
class Builder:
    """Adds operators one after the other; every method that adds one returns its index.

    `branch` and `depth` hold for the operators that are added next. `branch` is the group as in Mirhoseini et al.,
    "Device Placement Optimization with Reinforcement Learning". `depth` is the layer of a recurrent network, counted
    from the bottom.
    """

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
        """Declare the network's input. It is no operator, and is wherever it is read."""
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
        """Add a 2-D convolution with bias and activation, whose rows are an attribute and whose filters are parameters
        (Jia et al., table 1).

        There, columns are an attribute too; here they are left out. With samples and filters, rows already give as many
        parts as there are devices, and a cut along both would only make the halo smaller.
        """
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
        """Add a pooling whose channels and rows are attributes."""
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
        """Add a concatenation along channels, which are an attribute. It computes nothing and moves everything."""
        _, _, height, width = self.shape(parts[0])
        reads, offset = [], 0
        for part in parts:
            reads.append((Read(0), Read(1, shift=-offset), Read(2), Read(3)))
            offset += self.shape(part)[1]
        out = (self.batch, offset, height, width)
        return self._add(NetworkOperator(self._name(name), "concat", out, "saa-", tuple(parts), tuple(reads)))

    def dense(self, x: int, outputs: int, name: str = "", layer: str = "", kind: str = "matmul") -> int:
        """Add a matrix multiplication, whose channels are parameters."""
        before = self.shape(x)
        taps = math.prod(before[1:])
        reads = (Read(0), *[ALL] * (len(before) - 1))
        flop = 2.0 * self.batch * taps * outputs
        weights = (taps + 1.0) * outputs * ITEM
        return self._add(
            NetworkOperator(self._name(name), kind, (self.batch, outputs), "sp", (x,), (reads,), flop, weights, layer)
        )

    def embed(self, vocabulary: int, size: int, name: str = "", layer: str = "") -> int:
        """Add a look-up, for which the columns of the table are parameters."""
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
        """Add one step of a layer. It reads the layer below and its own previous state; hidden units are parameters."""
        width = self.shape(x)[1] + hidden
        inputs = (x,) if state is None else (x, state)
        reads = tuple((Read(0), ALL) for _ in inputs)
        flop, weights = 8.0 * self.batch * hidden * width, 4.0 * hidden * (width + 1) * ITEM
        return self._add(
            NetworkOperator(self._name(name), "lstm", (self.batch, hidden), "sp", inputs, reads, flop, weights, layer)
        )

    def stack(self, parts: Sequence[int], name: str = "") -> int:
        """Stack vectors to a matrix, which computes nothing."""
        out = (self.batch, len(parts), self.shape(parts[0])[1])
        reads = tuple((Read(0), Read(2)) for _ in parts)
        return self._add(NetworkOperator(self._name(name), "stack", out, "s-a", tuple(parts), reads))

    def attention(self, query: int, states: int, name: str = "", layer: str = "") -> int:
        """Add the attention of one decoder step over the encoder's stacked states (multiplicative), then a layer over
        both."""
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
