"""A network's kernels on its device, to be launched in any stages without compiling again. Start at `Bench`.

Every tensor has memory of its own here, filled by one run of the whole network on random values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Var

from templates.lowering import lowering_context
from tuner.devices import Device, timed_call
from tuner.errors import BadInput
from tuner.graph import Placed, compile_module, host_of
from tuner.stages.calls import Calls
from tuner.stages.merge import Merging
from tuner.stages.passes import around, passes
from tuner.stages.schedule import Stage

RUNS = 11
_ALLOCATION = "relax.builtin.alloc_tensor"


class Bench:
    """Launches stages of a network on streams, as its module would. The kernels of merged stages, which `merging` has,
    are compiled when they are first launched.

    Raises BadInput if the device has less memory than that takes (drivers promise more than there is, and who uses it
    is killed), RuntimeError if it refuses a kernel or a tensor.
    """

    def __init__(
        self, placed: Placed, calls: Calls, device: Device, seed: int = 0, merging: Merging | None = None
    ) -> None:
        _check_memory(calls, device)
        self._device, self._calls, self._merging = device.tvm_device(), calls, merging
        self._cache_bytes, self._graph = device.cache_bytes, calls.graph()
        self._merged: dict[Stage, list[Any]] = {}
        self._rng = np.random.default_rng(seed)
        self._values: dict[Any, Any] = {}
        executable = compile_module(placed.module, host_of([device.target]), 1)
        kernels = next((child for child in executable.mod.imports if child.kind == "llvm"), None)
        functions = {c.name: kernels.get_function(c.name) for c in calls.kernels} if kernels else {}
        self._launches = [[functions[c.name], *(self._value(a) for a in c.value.args)] for c in calls.kernels]
        self._run = tvm.get_global_func("edgetune.stage.run")
        self._time = tvm.get_global_func("edgetune.stage.time")
        for i in range(len(self._launches)):
            self._launch(Stage(((i,),)))
        self._device.sync()

    def seconds(self, stages: Sequence[Stage], runs: int = RUNS) -> dict[Stage, tuple[float, ...]]:
        """Seconds between the device's events around each stage, each time, in the network (see `passes`). Raises
        RuntimeError as above."""
        found = {}
        for schedule, given in passes(self._graph, stages):
            launched: list[Any] = []
            for before, stage in around(schedule, given, self._touched, self._cache_bytes):
                launched += [[[self._launches[i] for i in before]], self._groups(stage)]
            converted = tvm.runtime.convert(launched)
            rounds = [self._time(self._device, converted) for _ in range(runs + 1)][1:]  # the first warms up
            for n, at in enumerate(given):
                found[schedule[at]] = tuple(int(taken[2 * n + 1]) * 1e-9 for taken in rounds)
        return found

    def _touched(self, i: int) -> dict[Any, int]:
        """The tensors of a call, and their bytes."""
        call = self._calls.kernels[i]
        constants = [a for a in call.value.args if isinstance(a, GenericConst)]
        return {tensor: _bytes(tensor.ty) for tensor in (*call.reads, *call.writes, *constants)}

    def schedule_seconds(self, schedule: Sequence[Stage], runs: int = RUNS) -> tuple[float, ...]:
        """As `seconds`, of stages one after the other."""
        all_groups = [self._groups(stage) for stage in schedule]

        def launch() -> None:
            for groups in all_groups:
                self._run(self._device, groups)

        function = tvm.runtime.convert(launch)
        timed_call(self._device, function)
        return tuple(timed_call(self._device, function) for _ in range(runs))

    def _groups(self, stage: Stage) -> Any:
        """As the runtime takes them: converted here, not where it is timed."""
        if stage.merged:
            return tvm.runtime.convert([[self._merged_launch(stage)]])
        return tvm.runtime.convert([[self._launches[i] for i in group] for group in stage.launched])

    def _merged_launch(self, stage: Stage) -> list[Any]:
        if stage not in self._merged:
            kernel = None if self._merging is None else self._merging.kernel(stage)
            assert kernel is not None, "only stages that can be are launched"
            function = kernel.function.with_attr("global_symbol", kernel.name)
            with lowering_context():
                built = tvm.tirx.build(tvm.IRModule({kernel.name: function}))
            self._merged[stage] = [built[kernel.name], *(self._value(a) for a in kernel.arguments)]
        return self._merged[stage]

    def _launch(self, stage: Stage) -> None:
        self._run(self._device, self._groups(stage))

    def _value(self, expr: Any) -> Any:
        """The tensor behind a kernel's operand; anything else as it is."""
        if not isinstance(expr, Var | GenericConst):
            return expr
        if expr not in self._values:
            self._values[expr] = self._made(expr)
        return self._values[expr]

    def _made(self, expr: Any) -> Any:
        if isinstance(expr, GenericConst):
            return tvm.runtime.tensor(expr.value.numpy(), self._device)
        shape, dtype = [int(s) for s in expr.ty.shape], str(expr.ty.dtype)
        value = self._calls.values.get(expr)
        if value is None:  # an input: random numbers, or zeros where they may be indices
            normal = dtype.startswith("float")
            return tvm.runtime.tensor(
                (self._rng.standard_normal(shape) if normal else np.zeros(shape)).astype(dtype), self._device
            )
        if isinstance(value, Var):
            return self._value(value)
        if isinstance(value, relax.TupleGetItem):
            return self._value(self._calls.values[value.tuple_value].fields[value.index])
        if value.op.name == _ALLOCATION:
            return tvm.runtime.empty(shape, dtype, self._device)
        return self._value(value.args[0])._create_view(shape)


def _check_memory(calls: Calls, device: Device) -> None:
    tensors = [var for var, value in calls.values.items() if isinstance(value, Call) and value.op.name == _ALLOCATION]
    needed = sum(_bytes(tensor.ty) for tensor in (*calls.main.params, *tensors))
    if device.memory_bytes is not None and needed > device.memory_bytes:
        sizes = f"{needed} bytes, and {device.title} has {device.memory_bytes} bytes"
        raise BadInput(f"timing the network's kernels takes {sizes}")


def _bytes(ty: Any) -> int:
    return math.prod(int(s) for s in ty.shape) * np.dtype(str(ty.dtype)).itemsize
