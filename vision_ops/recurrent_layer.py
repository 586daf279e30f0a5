"""The operator that runs a recurrent layer over a sequence. What it adds up from the inputs is computed before it.

The states of a step need those of the step before, so that its kernels have the loop over the steps inside: on a GPU
one group computes a sequence, whose state is in local memory; on a host a thread does, or all threads share every step
out. Start at `Recurrent`.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of Gers et al., "Learning to
Forget", 2000; Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, section 2.3, for the GRU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from templates.operator import Operator, TensorSpec, View
from tuning_db.record import Workload
from vision_ops.decoding import numpy_sigmoid

BLOCK = 16  # units whose weights lie together
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
QUANTISED = "int8"  # the dtype of workloads whose weights are whole numbers


@dataclass(frozen=True)
class Recurrent(View):
    """A workload that runs `batch` sequences of `steps` steps through `hidden` units in each of `directions`.

    The gates of a `kind`, in order: an RNN has one; a GRU's are update, reset and candidate, and its reset gate
    multiplies the product of the state, not the state; an LSTM's are input, output, forget and candidate. A second
    direction runs backwards, and the only one does if it is `reverse`.

    The inputs are `given` (steps, batch, directions, gates, hidden), which has the products of the inputs with their
    weights and the biases; `weights` (directions, blocks, hidden, gates, 16), in blocks of 16 units; of a GRU the
    `bias` (directions, hidden) of the candidate's product; and the first `state` and, of an LSTM, `cells`, each
    (directions, batch, hidden). The outputs are `states` (steps, directions, batch, hidden) and, of an LSTM, the last
    cells. Raises ValueError for an unknown kind, sizes below one, and units that do not fill their blocks.

    All of them are float32, unless the workload's dtype is "int8". Then the weights are integers of eight bits, and
    behind them is an input `scales` (directions, gates, hidden), with which each sum of products is multiplied before
    `given` or the bias is added. The state stays float32, which is more exact than in onnxruntime, whose
    DynamicQuantizeLSTM quantises the state at every step.
    """

    op = "recurrent"

    steps: int
    batch: int
    hidden: int
    directions: int = 1
    kind: str = "lstm"
    reverse: bool = False

    @classmethod
    def sizes(cls) -> tuple[str, ...]:
        return "steps", "batch", "hidden", "directions"

    def __post_init__(self) -> None:
        if self.kind not in GATES:
            raise ValueError(f"recurrent: no such kind: {self.kind!r} (known: {', '.join(GATES)})")
        if min(self.steps, self.batch, self.hidden) < 1 or self.directions not in (1, 2) or self.hidden % BLOCK:
            raise ValueError(f"recurrent: sizes are positive, and units fill blocks of {BLOCK}: {self}")

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def blocks(self) -> int:
        return self.hidden // BLOCK

    @property
    def sequences(self) -> int:
        """Return how many sequences do not wait for each other."""
        return self.directions * self.batch

    @property
    def flop(self) -> float:
        return 2.0 * self.steps * self.sequences * self.gates * self.hidden**2

    def is_reverse(self, direction: int) -> bool:
        return direction == 1 or self.reverse


def pack_recurrent(weight: np.ndarray) -> np.ndarray:
    """Pack the weights of a layer, (directions, gates, hidden, hidden of the step before), as `Recurrent` has them."""
    directions, gates, hidden, before = weight.shape
    blocks = weight.reshape(directions, gates, hidden // BLOCK, BLOCK, before)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 1, 3))


class RecurrentOperator(Operator):
    """The operator that `Recurrent` describes, step by step in float64 in NumPy as the reference."""

    view = Recurrent

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        layer = Recurrent.of(workload)
        state = (layer.directions, layer.batch, layer.hidden)
        shapes = {
            "given": (layer.steps, layer.batch, layer.directions, layer.gates, layer.hidden),
            "weights": (layer.directions, layer.blocks, layer.hidden, layer.gates, BLOCK),
            **({"scales": (layer.directions, layer.gates, layer.hidden)} if workload.dtype == QUANTISED else {}),
            **({"bias": (layer.directions, layer.hidden)} if layer.kind == "gru" else {}),
            "state": state,
            **({"cells": state} if layer.kind == "lstm" else {}),
        }
        dtypes = {"weights": workload.dtype}
        return tuple(TensorSpec(name, shape, dtypes.get(name, "float32")) for name, shape in shapes.items())

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        layer = Recurrent.of(workload)
        state = (layer.directions, layer.batch, layer.hidden)
        states = TensorSpec("states", (layer.steps, *state), "float32")
        return (states, TensorSpec("last_cells", state, "float32")) if layer.kind == "lstm" else (states,)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw inputs. Weights, times their scales, are as small as those of a layer that torch begins with."""
        scale = Recurrent.of(workload).hidden ** -0.5
        scales = {"weights": scale, "bias": scale}

        def drawn(spec: TensorSpec) -> np.ndarray:
            if spec.dtype == QUANTISED:
                return rng.integers(-128, 128, spec.shape, spec.dtype)
            if spec.name == "scales":
                return (rng.uniform(0.5, 1.5, spec.shape) * scale / 74).astype(spec.dtype)  # 74 steps are a deviation
            return (rng.standard_normal(spec.shape) * scales.get(spec.name, 1.0)).astype(spec.dtype)

        return tuple(drawn(spec) for spec in self.inputs(workload))

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        given, *others = inputs
        if workload.dtype == QUANTISED:
            weights, scales, *rest = others
            ends = np.where(weights < 0, -128, 127).astype(weights.dtype)
            yield "weights at the ends of their range", (given, ends, scales, *rest)
            yield "scales of zero and below", (given, weights, -scales * (scales > scales.mean()), *rest)
        yield "large", (given * np.float32(1e4), *others)
        yield "zeros", (np.zeros_like(given), *others)
        hole = given.copy()
        hole[-1, -1, 0, -1, 0] = np.nan
        yield "a NaN", (hole, *others)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        layer = Recurrent.of(workload)
        given, weights, *others = (x.astype(np.float64) for x in inputs)
        scales = others.pop(0) if workload.dtype == QUANTISED else np.ones((2, 1, 1))
        bias = others.pop(0) if layer.kind == "gru" else np.zeros((layer.directions, layer.hidden))
        state, cells = others[0].copy(), others[-1].copy()
        whole = weights.transpose(0, 2, 3, 1, 4).reshape(layer.directions, layer.hidden, -1)
        states = np.empty((layer.steps, *state.shape))
        for t in range(layer.steps):
            for d in range(layer.directions):
                at = layer.steps - 1 - t if layer.is_reverse(d) else t
                sums = (state[d] @ whole[d]).reshape(layer.batch, layer.gates, layer.hidden)
                products = (sums * scales[d]).swapaxes(0, 1)
                of_inputs = given[at, :, d].swapaxes(0, 1)
                state[d], cells[d] = _step(layer.kind, of_inputs, products, (state[d], cells[d]), bias[d])
                states[at, d] = state[d]
        return (states, cells) if layer.kind == "lstm" else (states,)


def _step(
    kind: str, given: np.ndarray, products: np.ndarray, before: tuple[np.ndarray, np.ndarray], bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the state and the cells after a step. The first two operands are (gates, batch, hidden)."""
    state, cells = before
    if kind == "rnn":
        return np.tanh(given[0] + products[0]), cells
    if kind == "gru":
        update, reset = (numpy_sigmoid(g + p) for g, p in zip(given[:2], products[:2], strict=True))
        candidate = np.tanh(given[2] + reset * (products[2] + bias))
        return candidate + update * (state - candidate), cells
    into, out, keep = (numpy_sigmoid(g + p) for g, p in zip(given[:3], products[:3], strict=True))
    cells = keep * cells + into * np.tanh(given[3] + products[3])
    return out * np.tanh(cells), cells


OPERATOR = RecurrentOperator()
