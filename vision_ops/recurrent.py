"""The template of recurrent layers (`vision_ops.recurrent_layer`) has kernels for GPUs and for a host's threads.

Start at `RecurrentTemplate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.blocking import divisors
from templates.cpu.isa import threads_of, vector_unit
from templates.gpu.limits import GpuLimits
from templates.kernels import Cells, Emitter, function, held, own, scratch, shared
from templates.space import Constraint, Knob, Space, Values
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.decoding import number
from vision_ops.recurrent_layer import BLOCK, OPERATOR, QUANTISED, Recurrent

_FEW_BYTES = 1 << 19  # of weights of all directions: one thread reads them from its second-level cache in microseconds
_MAX_BLOCKS = 4


class RecurrentTemplate(Template):
    """A template that adds the products of `ki` units of the state to sums in registers without a loop.

    On a host it computes `blocks` blocks of 16 units at a time. If `split` is "sequences", a thread runs a sequence to
    its end, and if it is "units", the threads share out the units of every step. On a GPU a group of `items` work-items
    runs a sequence. Weights of eight bits are read as they are, and become float32 in registers.
    """

    name = "vision.recurrent"
    op = "recurrent"
    dtypes = ("float32", QUANTISED)

    def space(self, workload: Workload, target: Target) -> Space | None:
        layer, limits = Recurrent.of(workload), Emitter.of(target).limits
        return _host_space(layer, target, workload.dtype) if limits is None else _gpu_space(layer, limits)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        emitter, operands = Emitter.of(target), OPERATOR.operands(workload)
        kind = _OnHost if emitter.limits is None else _OnGpu

        def body(given: Cells, weights: Cells, *others: Cells) -> None:
            named = {spec.name: cells for spec, cells in zip(operands[2:], others, strict=True)}
            kind(_Layer(Recurrent.of(workload), given, weights, named), emitter, config.knobs)()

        return function(operands, body)


def _host_space(layer: Recurrent, target: Target, dtype: str) -> Space:
    unit = vector_unit(target)
    sums = layer.gates * -(-BLOCK // unit.lanes)  # registers that a block takes
    knobs = (
        Knob("blocks", divisors(layer.blocks, _MAX_BLOCKS)),
        Knob("ki", (1, 2, 4, 8)),
        Knob("split", ("sequences", "units")),
    )
    constraints = (
        Constraint("the sums do not fit", lambda v: v["blocks"] == 1 or v["blocks"] * sums <= unit.accumulators),
    )
    most = max(b for b in knobs[0].values if b == 1 or b * sums <= unit.accumulators)
    small = layer.sequences * layer.gates * layer.hidden**2 * np.dtype(dtype).itemsize <= _FEW_BYTES
    alone = small or layer.sequences >= threads_of(target)
    splits = ("sequences", "units") if alone else ("units", "sequences")
    order = (most, 1) if dtype == QUANTISED else (1, most)  # widening takes as long as reading does
    seeds = tuple({"blocks": blocks, "ki": 4, "split": split} for split in splits for blocks in order)
    return Space(RecurrentTemplate.name, knobs, constraints, seeds, partial(_host_features, layer))


def _gpu_space(layer: Recurrent, limits: GpuLimits) -> Space | None:
    if 2 * layer.hidden * 4 > limits.local_memory_bytes:
        return None
    items = tuple(n for n in (16, 32, 64, 128, 256, 512) if n <= limits.max_threads and layer.hidden % n == 0)
    if not items:
        return None
    knobs = (Knob("items", items), Knob("ki", (1, 2, 4, 8)))
    seeds = ({"items": items[-1], "ki": 4}, {"items": items[0], "ki": 4})
    return Space(RecurrentTemplate.name, knobs, (), seeds, partial(_gpu_features, layer))


def _host_features(layer: Recurrent, v: Values) -> Mapping[str, float]:
    chunks = layer.sequences * (layer.blocks // v["blocks"] if v["split"] == "units" else 1)
    return {"accumulators": float(layer.gates * v["blocks"]), "chunks": float(chunks), "unrolled": float(v["ki"])}


def _gpu_features(layer: Recurrent, v: Values) -> Mapping[str, float]:
    return {"items_in_all": float(layer.sequences * v["items"]), "units_of_an_item": layer.hidden / v["items"]}


@dataclass(frozen=True)
class _Layer:
    """The layer that is computed, its operands, and what every kernel computes of them. Weights of eight bits have
    `scales` among the other operands."""

    view: Recurrent
    given: Cells
    weights: Cells
    others: Mapping[str, Cells]

    def where(self, sequence: Any) -> tuple[Any, Any]:
        """Return the direction of a sequence, and its place in the batch."""
        return held(sequence // self.view.batch), held(sequence % self.view.batch)

    def at(self, t: Any, direction: Any) -> Any:
        """Return the place in the sequence of the step that is computed as number `t`."""
        back = self.view.steps - 1 - t
        if self.view.directions == 1:
            return held(back) if self.view.reverse else t
        return held(tirx.Select(direction == 1, back, t))

    def weight(self, direction: Any, block: Any, k: Any, *, gate: int, lane: Any) -> Any:
        """Return a weight of the unit `lane` of a block, with which unit `k` of the state is multiplied, in float32."""
        value = self.weights[direction, block, k, gate, lane]
        return value.astype("float32") if "scales" in self.others else value

    def begin(self, sums: Callable[[int], tuple[Cells, Any]], at: Sequence[Any], unit: Any) -> None:
        """Emit the first values of the sums of a unit. `at` is the place in the sequence, the sequence of the batch and
        the direction, and sums(gate) are the cells and the index of a sum. A sum that is to be scaled begins with
        zero."""
        for gate in range(self.view.gates):
            cells, index = sums(gate)
            cells[index] = number(0.0) if "scales" in self.others else self._added(at, gate, unit)

    def ended(self, sums: Callable[[int], tuple[Cells, Any]], at: Sequence[Any], unit: Any) -> list[Any]:
        """Return the sums of a unit, after emitting their scaling if weights are scaled. The operands are those of
        `begin`. The scaled sums are stored: the functions of the gates would repeat a longer expression many times."""
        for gate, (cells, index) in enumerate(map(sums, range(self.view.gates))):
            if "scales" in self.others:
                cells[index] = self._added(at, gate, unit) + cells[index] * self.others["scales"][at[2], gate, unit]
        return [cells[index] for cells, index in map(sums, range(self.view.gates))]

    def _added(self, at: Sequence[Any], gate: int, unit: Any) -> Any:
        """Return what is added to the products of a unit's state."""
        candidate = self.view.kind == "gru" and gate == 2
        return self.others["bias"][at[2], unit] if candidate else self.given[(*at, gate, unit)]

    def state_of(self, sums: Sequence[Any], given: Any, before: Any, cells: tuple[Cells, Any]) -> Any:
        """Return a unit's new state. `given` is what a GRU's candidate gets of the inputs, and `cells` has the place of
        an LSTM's cell, which is updated first."""
        if self.view.kind == "rnn":
            return tirx.tanh(sums[0])
        if self.view.kind == "gru":
            candidate = tirx.tanh(given + tirx.sigmoid(sums[1]) * sums[2])
            return tirx.sigmoid(sums[0]) * before + (number(1.0) - tirx.sigmoid(sums[0])) * candidate
        place, index = cells
        place[index] = tirx.sigmoid(sums[2]) * place[index] + tirx.sigmoid(sums[0]) * tirx.tanh(sums[3])
        return tirx.sigmoid(sums[1]) * tirx.tanh(place[index])


@dataclass(frozen=True)
class _Loops:
    """Emits the loops of a layer's kernels."""

    layer: _Layer
    emitter: Emitter
    knobs: Values

    @property
    def view(self) -> Recurrent:
        return self.layer.view

    def over_state(self, read: Callable[[Any], Any], add: Callable[[Any, Any], None]) -> None:
        """Emit add(k, value) for each unit k of the state before, whose value is read(k)."""
        with T.serial(0, self.view.hidden // self.knobs["ki"]) as outer:
            for inner in range(self.knobs["ki"]):
                k = held(outer * self.knobs["ki"] + inner)
                add(k, held(read(k)))


class _OnHost(_Loops):
    """The loops on a host, which compute vectors of a block's units."""

    def __call__(self) -> None:
        view, tiles = self.view, self.view.blocks // self.knobs["blocks"]
        state = scratch("float32", 2, view.directions, view.batch, view.hidden)
        if self.knobs["split"] == "sequences":
            with self.emitter.launch(view.sequences) as (sequence, _):
                where = self.layer.where(sequence)
                self._copy(state, where)
                with T.serial(0, view.steps) as t:
                    at = self.layer.at(t, where[0])
                    with T.serial(0, tiles) as tile:
                        self._tile(state, (t, at), where, tile)
            return
        with self.emitter.launch(view.sequences) as (sequence, _):
            self._copy(state, self.layer.where(sequence))
        with T.serial(0, view.steps) as t, self.emitter.launch(view.sequences * tiles) as (part, _):
            where = self.layer.where(held(part // tiles))
            self._tile(state, (t, self.layer.at(t, where[0])), where, held(part % tiles))

    def _copy(self, state: Cells, where: tuple[Any, Any]) -> None:
        """Emit the copies of a sequence's first state and cells to where they are computed."""
        with T.serial(0, self.view.hidden) as unit:
            state[(0, *where, unit)] = self.layer.others["state"][(*where, unit)]
            if self.view.kind == "lstm":
                self.layer.others["last_cells"][(*where, unit)] = self.layer.others["cells"][(*where, unit)]

    def _tile(self, state: Cells, step: tuple[Any, Any], where: tuple[Any, Any], tile: Any) -> None:
        """Emit the new states of a few blocks of units of one sequence."""
        (t, at), (direction, sequence), view, blocks = step, where, self.view, self.knobs["blocks"]
        sums = own("float32", blocks * view.gates * BLOCK)
        before, after = held(t % 2), held((t + 1) % 2)
        first = held(tile * blocks)

        def place(block: int, lane: Any) -> Callable[[int], tuple[Cells, Any]]:
            return lambda gate: (sums, (block * view.gates + gate) * BLOCK + lane)

        for block in range(blocks):
            with T.vectorized(0, BLOCK) as lane:
                unit = (first + block) * BLOCK + lane
                self.layer.begin(place(block, lane), (at, sequence, direction), unit)

        def add(k: Any, value: Any) -> None:
            for block in range(blocks):
                for gate in range(view.gates):
                    with T.vectorized(0, BLOCK) as lane:
                        product = value * self.layer.weight(direction, first + block, k, gate=gate, lane=lane)
                        cells, index = place(block, lane)(gate)
                        cells[index] = cells[index] + product

        self.over_state(lambda k: state[before, direction, sequence, k], add)
        for block in range(blocks):
            with T.vectorized(0, BLOCK) as lane:
                unit = (first + block) * BLOCK + lane
                gates = self.layer.ended(place(block, lane), (at, sequence, direction), unit)
                given = self.layer.given[at, sequence, direction, view.gates - 1, unit]
                cells = self.layer.others.get("last_cells", sums), (direction, sequence, unit)
                old = state[before, direction, sequence, unit]
                state[after, direction, sequence, unit] = self.layer.state_of(gates, given, old, cells)
                self.layer.others["states"][at, direction, sequence, unit] = state[after, direction, sequence, unit]


class _OnGpu(_Loops):
    """The loops on a GPU, whose items compute single units."""

    def __call__(self) -> None:
        view, items = self.view, self.knobs["items"]
        with self.emitter.launch(view.sequences, items) as (group, item):
            where = self.layer.where(group)
            state = shared("float32", 2, view.hidden)
            cells = own("float32", view.hidden // items)
            for i in range(view.hidden // items):
                state[0, item + i * items] = self.layer.others["state"][(*where, item + i * items)]
                if view.kind == "lstm":
                    cells[i] = self.layer.others["cells"][(*where, item + i * items)]
            self.emitter.barrier()
            with T.serial(0, view.steps) as t:
                at = self.layer.at(t, where[0])
                for i in range(view.hidden // items):
                    self._unit((state, cells, i), (t, at), where, held(item + i * items))
                self.emitter.barrier()
            if view.kind == "lstm":
                for i in range(view.hidden // items):
                    self.layer.others["last_cells"][(*where, item + i * items)] = cells[i]

    def _unit(self, kept: tuple[Cells, Cells, int], step: tuple[Any, Any], where: tuple[Any, Any], unit: Any) -> None:
        """Emit the new state of a unit. `kept` has the states, the item's cells, and which of them is the unit's."""
        (t, at), (direction, sequence), view, (state, cells, i) = step, where, self.view, kept
        sums = own("float32", view.gates)
        before, after = held(t % 2), held((t + 1) % 2)
        self.layer.begin(lambda gate: (sums, gate), (at, sequence, direction), unit)

        def add(k: Any, value: Any) -> None:
            for gate in range(view.gates):
                weight = self.layer.weight(direction, unit // BLOCK, k, gate=gate, lane=unit % BLOCK)
                sums[gate] = sums[gate] + value * weight

        self.over_state(lambda k: state[before, k], add)
        given = self.layer.given[at, sequence, direction, view.gates - 1, unit]
        gates = self.layer.ended(lambda gate: (sums, gate), (at, sequence, direction), unit)
        new = held(self.layer.state_of(gates, given, state[before, unit], (cells, i)))
        state[after, unit] = new
        self.layer.others["states"][at, direction, sequence, unit] = new


TEMPLATE = RecurrentTemplate()
