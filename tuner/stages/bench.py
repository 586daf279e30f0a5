"""Launches a network's kernels on its device in any stages, without compiling again. Start at `StageBench`.

Every tensor has its own memory here, which one run of the whole network on random values fills.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Var

from templates.lowering import lowering_context
from tuner.devices import Device, timed_call
from tuner.devices.parallel.stage import STAGE, stage_arguments
from tuner.errors import BadInput
from tuner.graph import Placed, compile_module, host_of
from tuner.stages.calls import Calls
from tuner.stages.host import Host
from tuner.stages.merge import Merging
from tuner.stages.passes import around, passes
from tuner.stages.schedule import Stage

RUNS = 11
WIDE_RUNS = 21  # runs of stages of several groups, as their times are differences
WHOLE_RUNS = 31  # runs of whole networks, whose times differ by little
FEW_RUNS, WHOLE_SECONDS = 9, 1.5
Around = Sequence[tuple[tuple[int, ...], Stage]]  # see `passes.around`
_ALLOCATION = "relax.builtin.alloc_tensor"


class StageBench:
    """Launches stages of a network on streams, or on parts of the host's threads, as its module would. The kernels of
    merged stages, which `merging` provides, are compiled when they are first launched.

    Raises BadInput if the device has less memory than that takes: drivers promise more than there is, and the process
    that uses it is killed. Raises BadInput if there is no thread pool for the host, and RuntimeError if the device
    refuses a kernel or a tensor.
    """

    def __init__(
        self, placed: Placed, calls: Calls, device: Device, seed: int = 0, merging: Merging | None = None
    ) -> None:
        _check_memory(calls, device)
        self._device, self._calls, self._merging = device.tvm_device(), calls, merging
        self._cache_bytes, self._graph = device.cache_bytes, calls.graph()
        self._merged: dict[Stage, list[Any]] = {}
        self._sizes: dict[int, dict[Any, int]] = {}
        self._rng = np.random.default_rng(seed)
        self._values: dict[Any, Any] = {}
        executable = compile_module(placed.module, host_of([device.target]), 1)
        kernels = next((child for child in executable.mod.imports if child.kind == "llvm"), None)
        self._host = Host(device.threads) if device.is_host else None
        if self._host is not None and kernels is not None:
            kernels = self._host.loaded(kernels)
        functions = {c.name: kernels.get_function(c.name) for c in calls.kernels} if kernels else {}
        self._launches = [[functions[c.name], *(self._value(a) for a in c.value.args)] for c in calls.kernels]
        self._run = tvm.get_global_func(STAGE if self._host else "edgetune.stage.run")
        for i in range(len(self._launches)):
            self._launcher(Stage(((i,),)))()
        self._device.sync()

    def seconds(self, stages: Sequence[Stage], runs: int | None = None) -> dict[Stage, tuple[float, ...]]:
        """Return the seconds of each stage in the network, one value a run (see `passes`).

        On a device they are the time between its events around the stage. For a stage of several groups, or a merged
        one, they are what the stage takes beyond its kernels one after the other. That may be negative; both are run in
        turns. All stages get their first run before any gets its second, so that a machine that slows down does so for
        all. On the host, a stage of one group has its own number of threads (default: all).

        `runs` is by default `RUNS`, or `WIDE_RUNS` in passes with stages of several groups. Raises RuntimeError as the
        class does.
        """
        every = [_Pass(self, *given) for given in passes(self._graph, stages)]
        for n in range((runs or WIDE_RUNS) + 1):
            for one in every:
                if n <= (runs or one.runs):
                    one.run()
        return {stage: times[1:] for one in every for stage, times in one.times()}  # the first warms up

    def behind(self, several: Sequence[Sequence[Stage]], runs: int = WHOLE_RUNS) -> list[tuple[float, ...]]:
        """Return, for each list of stages on several streams, what a stage costs the network beyond `seconds`, one
        value a run.

        Some drivers continue more slowly after streams were joined. The network is run in turns with those stages of
        the list that fit into one schedule, and with one kernel after the other. A value may be negative. Networks that
        take long get fewer than `runs` runs, but at least `FEW_RUNS` if `runs` allows. Raises RuntimeError as the class
        does.
        """
        chosen = [next(passes(self._graph, stages)) for stages in several]
        local = self.seconds([schedule[i] for schedule, given in chosen for i in given])
        found = []
        for schedule, given in chosen:
            own = sum(median(local[schedule[i]]) for i in given)
            each = schedule, _one_after_the_other(schedule)
            launches = [tvm.runtime.convert(self._launching(stages)) for stages in each]
            rounds: list[list[float]] = []
            ends = time.monotonic() + WHOLE_SECONDS
            while len(rounds) <= runs and (len(rounds) <= min(FEW_RUNS, runs) or time.monotonic() < ends):
                rounds.append([timed_call(self._device, launch) for launch in launches])
            found.append(tuple((taken - without - own) / len(given) for taken, without in rounds[1:]))
        return found

    def timing(self, timed: Around, staged: bool) -> Callable[[], list[float]]:
        """Return a function that runs stages once, each behind what comes before it, and returns the seconds of each.
        If not `staged`, their kernels run one after the other."""
        return self._timing_on_host(timed, staged) if self._host else self._timing_on_device(timed, staged)

    def _timing_on_device(self, timed: Around, staged: bool) -> Callable[[], list[float]]:
        function = tvm.get_global_func("edgetune.stage.time")
        rows: list[list[list[Any]]] = []
        for before, stage in timed:
            groups = self._groups(stage) if staged else [[self._launches[i] for i in _members(stage)]]
            rows += [[[self._launches[i] for i in before]], groups]  # what comes before is a stage of one group
        converted = tvm.runtime.convert(rows)
        return lambda: [int(n) * 1e-9 for n in function(self._device, converted)[1::2]]

    def _timing_on_host(self, timed: Around, staged: bool) -> Callable[[], list[float]]:
        host = self._host
        assert host is not None
        launchers = []
        for before, stage in timed:
            plain = stage if staged or len(stage.groups) == 1 else Stage((_members(stage),))
            launchers.append(([self._launcher(Stage(((i,),))) for i in before], self._launcher(plain), plain))

        def run() -> list[float]:
            taken = []
            with host.computing():  # entered once, as a thread that is put on a core is slow to begin
                for before, launcher, stage in launchers:
                    for launch in before:
                        launch()
                    threads = sum(stage.threads) or host.threads
                    if threads != host.threads:
                        host.share(threads)
                    if len(stage.groups) > 1 and not stage.merged:
                        host.small_stage()  # warms the caches with the code that launches stages, as in a network
                    started = time.perf_counter()
                    launcher()
                    taken.append(time.perf_counter() - started)
                    if threads != host.threads:
                        host.share(host.threads)
            return taken

        return run

    def before(self, schedule: Sequence[Stage], given: Sequence[int]) -> Around:
        """Return the stages of a schedule with the indices `given`, each with the calls to run before it, so that it
        finds the caches as it would there."""
        return around(tuple(schedule), given, self._touched, self._cache_bytes)

    def _touched(self, i: int) -> dict[Any, int]:
        """Return the tensors of a call, and their bytes."""
        if i not in self._sizes:
            call = self._calls.kernels[i]
            constants = [a for a in call.value.args if isinstance(a, GenericConst)]
            self._sizes[i] = {tensor: _bytes(tensor.ty) for tensor in (*call.reads, *call.writes, *constants)}
        return self._sizes[i]

    def schedule_seconds(self, schedule: Sequence[Stage], runs: int = RUNS) -> tuple[float, ...]:
        """Return the seconds of stages one after the other, one value a run. Raises RuntimeError as the class does."""
        launch = self._launching(schedule)
        if self._host is None:
            function = tvm.runtime.convert(launch)
            return tuple(timed_call(self._device, function) for _ in range(runs + 1))[1:]
        times = []
        with self._host.computing():
            for _ in range(runs + 1):
                started = time.perf_counter()
                launch()
                times.append(time.perf_counter() - started)
        return tuple(times[1:])

    def _launching(self, schedule: Sequence[Stage]) -> Callable[[], None]:
        launchers = [self._launcher(stage) for stage in schedule]

        def launch() -> None:
            for launcher in launchers:
                launcher()

        return launch

    def _launcher(self, stage: Stage) -> Callable[[], Any]:
        """Return a function that launches a stage."""
        groups = self._groups(stage)
        if self._host is None:
            converted = tvm.runtime.convert(groups)  # converted here, outside the timed part
            return lambda: self._run(self._device, converted)
        if len(groups) > 1:
            kernels = [[("", function, arguments) for function, *arguments in group] for group in groups]
            arguments = stage_arguments(zip(stage.threads[::-1], kernels, strict=True))
            return lambda: self._run(*arguments)

        def one_after_the_other() -> None:
            for function, *operands in groups[0]:
                function(*operands)

        return one_after_the_other

    def _groups(self, stage: Stage) -> list[list[list[Any]]]:
        if stage.merged:
            return [[self._merged_launch(stage)]]
        return [[self._launches[i] for i in group] for group in stage.launched]

    def _merged_launch(self, stage: Stage) -> list[Any]:
        if stage not in self._merged:
            kernel = None if self._merging is None else self._merging.kernel(stage)
            assert kernel is not None, "only stages that can be are launched"
            function = kernel.function.with_attr("global_symbol", kernel.name)
            with lowering_context():
                built = tvm.tirx.build(tvm.IRModule({kernel.name: function}))
            if self._host is not None:
                built = self._host.loaded(built)
            self._merged[stage] = [built[kernel.name], *(self._value(a) for a in kernel.arguments)]
        return self._merged[stage]

    def _value(self, expr: Any) -> Any:
        """Return the tensor behind a kernel's operand; any other operand is returned unchanged."""
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
        if value is None:  # an input gets random numbers, or zeros where they may be indices
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


class _Pass:
    """A schedule with some stages to time, which is run again and again. `runs` is how often it should run after the
    first."""

    def __init__(self, bench: StageBench, schedule: Sequence[Stage], given: Sequence[int]) -> None:
        self._timed = bench.before(schedule, given)
        self._staged = bench.timing(self._timed, True)
        self._wide = [len(stage.groups) > 1 for _, stage in self._timed]
        self._plain = bench.timing(self._timed, False) if any(self._wide) else None
        self.runs = WIDE_RUNS if self._plain else RUNS
        self._rounds: list[list[float]] = []

    def run(self) -> None:
        """Run once, and once more with the stages' kernels one after the other if any stage has several groups."""
        taken = self._staged()
        less = self._plain() if self._plain else taken
        self._rounds.append([t - s if w else t for t, s, w in zip(taken, less, self._wide, strict=True)])

    def times(self) -> Iterator[tuple[Stage, tuple[float, ...]]]:
        """Return every stage with all its seconds."""
        stages = (stage for _, stage in self._timed)
        return zip(stages, zip(*self._rounds, strict=True), strict=True)


def _members(stage: Stage) -> tuple[int, ...]:
    return tuple(i for group in stage.groups for i in group)


def _one_after_the_other(schedule: Sequence[Stage]) -> list[Stage]:
    return [Stage(((i,),)) for stage in schedule for i in _members(stage)]


def _check_memory(calls: Calls, device: Device) -> None:
    tensors = [var for var, value in calls.values.items() if isinstance(value, Call) and value.op.name == _ALLOCATION]
    needed = sum(_bytes(tensor.ty) for tensor in (*calls.main.params, *tensors))
    if device.memory_bytes is not None and needed > device.memory_bytes:
        sizes = f"{needed} bytes, and {device.title} has {device.memory_bytes} bytes"
        raise BadInput(f"timing the network's kernels takes {sizes}")


def _bytes(ty: Any) -> int:
    return math.prod(int(s) for s in ty.shape) * np.dtype(str(ty.dtype)).itemsize
