"""Tells what the pieces of a network cost on some devices. Costs come from the tuning database, and are measured where
it lacks them. Start at `Costs`.

Steps that no template computes, transforms of layouts and crossings from one device to another are kept as trials of
workloads of their own ("step", "transform", "crossing", "conversion"), with the one config PIECE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from tvm.ir import Call, IRModule, Var

from templates.template import Layout
from tuner.devices import Device
from tuner.errors import last_line
from tuner.graph import Alone, FusedGraph, lower_conversion, lower_transform
from tuner.graph.fusion.steps import PlainStep, Step, TunedStep
from tuner.graph.ir.bindings import operands
from tuner.placement.fallback import operator_of
from tuner.placement.kernel_timing import computes, fitted_link
from tuner.placement.timing import Timing, TimingHere
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.store import Store

PIECE = Config("piece", {})
VERSION = 4  # of how pieces are timed: older times are measured again
# The bytes of the copies that a link is fitted to: from a few numbers to a large activation.
COPIES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22)


class Cost(NamedTuple):
    """The cost that was found for a piece. `seconds` is infinity where the device cannot compute it.

    `source` says where they are from:
    "device" (measured on it), "network" (measured on it among a network's other kernels), "free" (nothing to compute),
    or a kernel's `Choice.source`."""

    seconds: float
    source: str


class Costs:
    """Tells the costs on `devices`, which are named by their indices. What is measured is added to the store at once.

    What `networks` and `links` give precedes all else. `networks` has, for each device, the seconds of kernels in
    networks, by their `kernel_hash`. `links` has the latency in seconds and the seconds per byte, from one device to
    another. `timing` measures; by default the devices are here.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        store: Store,
        versions: dict[str, Any] | None = None,
        *,
        networks: Sequence[Mapping[str, float]] = (),
        links: Mapping[tuple[int, int], tuple[float, float]] = MappingProxyType({}),
        timing: Timing | None = None,
    ) -> None:
        self._devices, self._store, self._versions = devices, store, versions or {}
        self._networks = networks or [{} for _ in devices]
        self._links = links
        self._timing: Timing = timing or TimingHere()
        self.measured = 0
        self.transform: Callable[[tuple[int, ...], str, int, Layout, Layout], Cost] = cache(self._transform)
        self.link: Callable[[int, int], tuple[float, float]] = cache(self._link)

    def step(self, graph: FusedGraph, step: Step, alone: Alone, device: int, config: Config | None = None) -> Cost:
        """Return the cost of a step in the layouts that `alone` has. `config` is that of a step that a template
        computes."""
        if (known := self.in_network(alone, device)) is not None:
            return known
        described = _plain(graph, step, alone) if isinstance(step, PlainStep) else _tuned(step, config)
        workload = Workload("step", described, dtype=graph.dtype)
        return self._timed(workload, device, alone.module)

    def in_network(self, alone: Alone, device: int) -> Cost | None:
        """Return the cost of a step by its kernels' times in a network, or None where one of its kernels was not timed
        in one."""
        known = self._networks[device]
        if not known or not (kernels := alone.kernels) or not known.keys() >= set(kernels):
            return None
        return Cost(sum(known[kernel] for kernel in kernels), "network")

    def copy(self, size: int, source: int, target: int) -> float:
        """Return the seconds of a copy of `size` bytes between kernels, by the link's fitted latency and rate."""
        latency, rate = self.link(source, target)
        return latency + rate * size

    def conversion(self, values: int, to: str, device: int) -> Cost:
        """Return the cost of making as many values bytes ("uint8") or float32."""
        return self._timed(
            conversion_of(values, to), device, lower_conversion(values, to, self._devices[device].target)
        )

    def _transform(self, shape: tuple[int, ...], dtype: str, device: int, before: Layout, to: Layout) -> Cost:
        workload = Workload("transform", {"shape": shape, "before": before.block, "to": to.block}, dtype=dtype)
        module = lower_transform(shape, dtype, before, to=to, target=self._devices[device].target)
        return self._timed(workload, device, module)

    def _link(self, source: int, target: int) -> tuple[float, float]:
        if (source, target) in self._links:
            return self._links[source, target]
        here, there, seconds = self._devices[source], self._devices[target], []
        timed = cache(lambda: self._timing.crossings(here, there, COPIES))  # times all sizes as soon as one is needed

        def times(size: int) -> tuple[float, ...]:
            return timed()[size]

        for size in COPIES:
            workload = Workload("crossing", {"bytes": size, "to": there.key.key})
            seconds.append(self._known(workload, source, partial(times, size)).seconds)
        return (math.inf, 0.0) if math.inf in seconds else fitted_link(COPIES, seconds)

    def _timed(self, workload: Workload, device: int, module: IRModule) -> Cost:
        if not computes(module):
            return Cost(0.0, "free")
        return self._known(workload, device, partial(self._timing.module, module, self._devices[device]))

    def _known(self, workload: Workload, device: int, measure: Callable[[], tuple[float, ...]]) -> Cost:
        trial = last_trial(self._store, workload, self._devices[device].key)
        if trial is None:
            trial = self._measured(workload, device, measure)
            self._store.add(trial)
        return Cost(trial.seconds, "device")

    def _measured(self, workload: Workload, device: int, measure: Callable[[], tuple[float, ...]]) -> Trial:
        self.measured += 1
        times: tuple[float, ...] = ()
        failure = None
        try:
            times = measure()
        except RuntimeError as error:
            failure = Failure(FailureKind.RUN, last_line(error))
        key = self._devices[device].key
        return Trial(workload, key, PIECE, VERSION, times, failure, versions=self._versions)


def conversion_of(values: int, to: str) -> Workload:
    """Return the workload of making as many values bytes ("uint8") or float32."""
    return Workload("conversion", {"values": values}, dtype=to)


def last_trial(store: Store, workload: Workload, key: DeviceKey) -> Trial | None:
    """Return the trial of a piece that was added last, whatever its date, or None if there is none."""
    return next((t for t in reversed(list(store.trials(workload, key))) if t.template_version == VERSION), None)


def _tuned(step: TunedStep, config: Config | None) -> dict[str, Any]:
    return {"workload": step.workload.key, "config": "" if config is None else config.key}


def _plain(graph: FusedGraph, step: PlainStep, alone: Alone) -> dict[str, Any]:
    """Return what tells a step's time from another's: operator, attributes, types and layouts."""
    value = step.value
    leaves = operands(value)
    function = value.args[0] if isinstance(value, Call) and operator_of(step) in _names(graph) else None
    return {
        "operator": operator_of(step),
        "attributes": str(value.attrs) if isinstance(value, Call) and value.attrs is not None else "",
        "function": "" if function is None else graph.module[function].script(),
        "reads": [str(leaf.ty) if hasattr(leaf, "ty") else str(leaf) for leaf in leaves],
        "blocks": [alone.reads[leaf].block if isinstance(leaf, Var) and leaf in alone.reads else 0 for leaf in leaves],
        "makes": alone.makes.block,
    }


def _names(graph: FusedGraph) -> set[str]:
    return {str(name.name_hint) for name in graph.module.functions}
