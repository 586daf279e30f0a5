"""Write recurrent layers of ONNX with their usual gates as one product of all inputs, and one node with the loop over
the steps, which becomes the operator `recurrent` (vision_ops/recurrent_layer.py). Start at `loop_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.graph.importers.onnx.rewrites.contributed import MICROSOFT
from tuner.graph.importers.onnx.rewrites.writer import NodeWriter
from vision_ops.recurrent_layer import BLOCK, QUANTISED, pack_recurrent

STEPS = "RecurrentSteps"  # an operator of our domain


@dataclass(frozen=True)
class Gates:
    """The weights of all directions of a layer of `kind` ("rnn", "gru" or "lstm"), in ONNX's order of gates.

    W is (directions, gates, hidden, inputs), R is (directions, gates, hidden, hidden), and the biases of both are
    (directions, gates, hidden). If the `scales` of W and of R are given, each (directions, gates, hidden), W and R are
    in whole steps of them.
    """

    kind: str
    w: np.ndarray
    r: np.ndarray
    bias_w: np.ndarray
    bias_r: np.ndarray
    scales: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def padding(self) -> int:
        """Return how many units are added to fill the last block. Their weights are zero, and so is their state."""
        return -self.w.shape[2] % BLOCK

    def filled(self, array: np.ndarray, *axes: int) -> np.ndarray:
        """Return an array whose axes of units are filled up with zeros."""
        return np.pad(array, [(0, self.padding if i in axes else 0) for i in range(array.ndim)])

    def of_inputs(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return W, with filled blocks, and its scales if it stays quantised."""
        weight, scales = _narrow(self.w, None if self.scales is None else self.scales[0])
        return self.filled(weight, 2), None if scales is None else self.filled(scales, 2)

    def of_states(self) -> list[np.ndarray]:
        """Return R as the operator has it, and its scales if it stays quantised."""
        weight, scales = _narrow(self.r, None if self.scales is None else self.scales[1])
        packed = pack_recurrent(self.filled(weight, 2, 3))
        return [packed] if scales is None else [packed, self.filled(scales, 2)]


def _narrow(weight: np.ndarray, scales: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return weights in whole steps as integers of eight bits, and their scales. Return real weights and None if there
    are no scales, or if the steps exceed eight bits, as unsigned ones less a small zero point do."""
    if scales is None:
        return weight, None
    limits = np.iinfo(QUANTISED)
    if weight.min() < limits.min or weight.max() > limits.max:
        return (weight * scales[..., None]).astype(np.float32), None
    return weight.astype(QUANTISED), scales


def loop_of(
    writer: NodeWriter, gates: Gates, x: str, sizes: tuple[int, int], states: Sequence[Sequence[str]], *, reverse: bool
) -> tuple[str, list[str], list[str]]:
    """Return the states of all steps (steps, directions, batch, hidden), and the last states and cells of every
    direction, each (batch, hidden).

    `x` is (steps, batch, inputs), and `sizes` are the steps and the batch. `states` has, for every direction, the
    first states and then the first cells, each (batch, hidden).
    """
    directions, _, hidden, _ = gates.w.shape
    (steps, batch), wide = sizes, hidden + gates.padding
    first = [_stacked(writer, part, (directions, batch, hidden), gates.padding) for part in states]
    outputs: list[tuple[int, ...]] = [(steps, directions, batch, wide)]
    reads = [_of_inputs(writer, gates, x, sizes), *(writer.constant(array) for array in gates.of_states())]
    if gates.kind == "gru":
        reads.append(writer.constant(gates.filled(gates.bias_r[:, 2], 1)))
    reads.append(first[0])
    if gates.kind == "lstm":
        reads.append(first[1])
        outputs.append((directions, batch, wide))
    whole, *cells = writer.add_own(STEPS, reads, outputs, layer=gates.kind, reverse=int(reverse))
    if gates.padding:
        whole, *cells = (
            writer.split(part, len(shape) - 1, [hidden, gates.padding])[0]
            for part, shape in zip([whole, *cells], outputs, strict=True)
        )
    last = [
        _part(writer, whole, (0 if reverse or d == 1 else steps - 1, d), (steps, directions), (batch, hidden))
        for d in range(directions)
    ]
    parts = writer.split(cells[0], 0, [1] * directions) if cells else []
    return whole, last, [writer.reshape(part, (batch, hidden)) for part in parts]


def _of_inputs(writer: NodeWriter, gates: Gates, x: str, sizes: tuple[int, int]) -> str:
    """Return the products of all inputs with W, (steps, batch, directions, gates, hidden), with all biases that can be
    added beforehand: of a GRU's candidate only that of W. Inputs of a W that stays quantised are quantised by their
    range first, as onnxruntime does."""
    bias = gates.bias_w + gates.bias_r
    if gates.kind == "gru":
        bias[:, 2] = gates.bias_w[:, 2]
    w, scales = gates.of_inputs()
    rows = writer.reshape(x, (sizes[0] * sizes[1], w.shape[3]))
    weight, added = w.reshape(-1, w.shape[3]), writer.constant(gates.filled(bias, 2).reshape(-1))
    if scales is None:
        products = writer.add("Gemm", rows, writer.constant(weight), added, transB=1)
    else:
        columns, steps = np.ascontiguousarray(weight.T), scales.reshape(-1)
        reads = [rows, writer.constant(columns), writer.constant(steps), "", added]
        products = writer.add("DynamicQuantizeMatMul", *reads, domain=MICROSOFT)
    return writer.reshape(products, (*sizes, *w.shape[:3]))


def _stacked(writer: NodeWriter, states: Sequence[str], shape: tuple[int, int, int], padding: int) -> str:
    """Return the states of all directions as one tensor (directions, batch, hidden), with filled blocks."""
    rows = [writer.reshape(state, (1, *shape[1:])) for state in states]
    whole = rows[0] if len(rows) == 1 else writer.add("Concat", *rows, axis=0)
    if not padding:
        return whole
    return writer.add("Concat", whole, writer.constant(np.zeros((*shape[:2], padding), np.float32)), axis=2)


def _part(writer: NodeWriter, x: str, at: tuple[int, int], sizes: tuple[int, int], shape: tuple[int, int]) -> str:
    """Return the part of `x`, of `shape`, at an index of its two outer axes of `sizes`."""
    rows = writer.reshape(x, (sizes[0] * sizes[1], *shape))
    index = writer.constant([at[0] * sizes[1] + at[1]], np.int64)
    return writer.reshape(writer.add("Gather", rows, index, axis=0), shape)
