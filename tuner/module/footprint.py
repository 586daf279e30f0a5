"""Find how much memory an inference needs for given kernels, without compiling them. Start at `Lowering`.

It is counted as in a manifest (see `Sizes.peak`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import GenericConst, Var

from templates.template import ScheduleError, template_named
from tuner.devices import Device
from tuner.errors import BadInput, last_line
from tuner.graph import (
    DevicePlan,
    FusedGraph,
    Placed,
    PlacedOperator,
    PlannedMemory,
    lower_placed,
    plan_memory,
    workspace_of,
)
from tuner.graph.ir.bindings import Bindings, operands
from tuner.graph.ir.hashes import kernel_hash
from tuner.graph.ir.simplify import constant
from tuner.graph.layout.choice import Choice, Planned
from tuning_db.record import Config, Workload

_log = logging.getLogger(__name__)

# What the files of a network take besides its constants: for their names and shapes, and for the calls of kernels. On
# six networks these were 730 to 1,250 bytes for each call.
_FILES, _FILES_PER_CALL = 4 << 10, 2 << 10


@dataclass(frozen=True)
class Footprint:
    """How many bytes an inference needs: for its weights, in the files of a module, and for its values.

    `workspaces` is the most that any kernel takes for itself, and `others` the most that one takes that is no kernel of
    a template.
    """

    weights: int
    values: int
    workspaces: int
    others: int

    @property
    def peak(self) -> int:
        """Return the most bytes that are needed at one time."""
        return self.weights + self.values + self.workspaces


class Lowering:
    """Lowers a network for one device, to see what memory it needs with one or another kernel. It remembers what each
    kernel takes."""

    def __init__(self, graph: FusedGraph, device: Device, planned: Planned, *, portable: bool = False) -> None:
        self.graph = graph
        self.device = device
        self._planned = planned
        self._portable = portable
        self._by_hash: dict[str, int] = {}
        self._by_config: dict[tuple[Workload, Config], float] = {}

    def footprint(self, chosen: Mapping[Var, Choice]) -> Footprint:
        """Return what an inference needs with the kernels that are chosen, by the results of the steps.

        Raises BadInput if a config cannot be applied, or if the device cannot compute the network.
        """
        configs = {out: choice.config for out, choice in chosen.items()}
        device_plan, planned = DevicePlan(self.device.target, {}, configs), self._planned
        placed = lower_placed(self.graph, [device_plan], planned.placement, planned.blocks, lift_all=self._portable)
        memory = PlannedMemory()
        plan_memory(placed.module, memory)
        assert memory.bytes is not None
        ours = {o.operator.function for o in placed.operators if isinstance(o, PlacedOperator)}
        spaces = {
            name.name_hint: self._space_of(func, name.name_hint)
            for name, func in placed.module.functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        others = (space for name, space in spaces.items() if name not in ours)
        return Footprint(_weights(placed), memory.bytes, max(spaces.values(), default=0), max(others, default=0))

    def workspace(self, workload: Workload, config: Config) -> float:
        """Return the bytes that a template's kernel takes for itself, or infinity if there can be no such kernel."""
        key = workload, config
        if key not in self._by_config:
            try:
                func = template_named(config.template).prim_func(workload, self.device.target, config)
                self._by_config[key] = self._space_of(func, config.template)
            except (ScheduleError, BadInput) as error:
                _log.info("%s is not considered: %s", config.key, last_line(error))
                self._by_config[key] = math.inf
        return self._by_config[key]

    def _space_of(self, func: tirx.PrimFunc, name: str) -> int:
        """Return what a function takes for itself on the device's threads. Raises BadInput if TVM cannot lower it."""
        key = kernel_hash(func)
        if key not in self._by_hash:
            target = self.device.target
            try:
                self._by_hash[key] = workspace_of(func, target).on(self.device.threads)
            except Exception as error:  # of any type: TVM raises many
                if not str(error).strip():  # what TVM makes of an interrupt that came while it called Python
                    raise
                raise BadInput(f"{name} cannot be compiled for {target.kind.name}: {last_line(error)}") from error
        return self._by_hash[key]


def _weights(placed: Placed) -> int:
    """Return about what the files of a network take that hold its calls and its constants, and not less."""
    main = Bindings.of(placed.module["main"])
    leaves = {leaf for value in (*main.values, *main.outputs) for leaf in operands(value)}
    arrays: list[Any] = [constant(leaf) for leaf in leaves if isinstance(leaf, GenericConst)]
    arrays += [array for arrays_there in placed.constants for array in arrays_there]
    held = sum(int(array.nbytes) for array in arrays if array is not None)
    return held + _FILES + _FILES_PER_CALL * len(main.values)
