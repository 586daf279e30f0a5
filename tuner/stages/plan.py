"""Which stages a network is built in, or none: searched for, compared with one kernel after the other and with the
greedy schedule, and remembered. Start at `plan_stages`.

What is remembered are trials of a workload of its own, "schedule", of this very network (its kernels, so its shapes and
batch size, too) on this very device. All ways are timed end to end, as modules, in turns; times of different
comparisons are not set against each other.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.devices import Device, opencl
from tuner.errors import BadInput
from tuner.graph import Placed, compile_module, host_of
from tuner.stages.bench import Bench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts, kernel_hashes, network_key
from tuner.stages.endings import Limits
from tuner.stages.host import Host
from tuner.stages.merge import Merging
from tuner.stages.rewrite import staged
from tuner.stages.schedule import Schedule, Stage, check, sequential
from tuner.stages.search import Options, keeps, search
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import Store

VERSION = 7  # of how schedules are searched and timed
ROUNDS = 15


@dataclass(frozen=True)
class StagePlan:
    """`placed`: the network to build, in the stages `schedule`; None where one kernel after the other takes no more.
    Seconds are medians of whole inferences, of this and of one kernel after the other. `finished`: whether the search
    had the time that it needed. `measured`: how many stages were timed now. `cuts`: what was not looked at in this
    search, a line a block."""

    placed: Placed
    schedule: Schedule | None
    seconds: float
    sequential_seconds: float
    finished: bool
    measured: int
    cuts: tuple[str, ...] = ()


def plan_stages(
    placed: Placed,
    device: Device,
    store: Store,
    seconds: float,
    versions: dict[str, Any] | None = None,
    progress: Callable[[int], None] = lambda _measured: None,
    options: Options | None = None,
    exact: bool = False,
) -> StagePlan:
    """The best of a network in the stages that a search finds, in the greedy schedule's (if the device can run that
    within the limits), and one kernel after the other, as they are measured end to end. What is known is not measured
    again; stages are searched for no longer than `seconds`, and `progress` is told how many have been timed. `exact`
    forbids templates that round differently (Winograd) for merged kernels, too.

    On the CPU a stage has at most as many groups as the device has threads.

    Raises BadInput if the network cannot be run in stages on the device (a CPU with one thread, or without a C compiler
    for our thread pool), or a kernel cannot be timed; RuntimeError if
    the device refuses (it may have no memory left); DatabaseError.
    """
    if not device.is_host:
        opencl.load()  # it has the functions that switch streams, on CUDA too
    elif device.threads < 2:
        raise BadInput(
            "kernels that run at the same time need a thread each, and the CPU has one here: give --threads 2"
        )
    calls = Calls.of(placed)
    merging = Merging(placed, calls, device, store, exact)
    graph = calls.graph(merging.kinds)
    options = options or Options()
    asked = {} if options.limits is None else {"limits": str(options.limits)}
    workload = Workload("schedule", {"network": network_key(kernel_hashes(calls), graph, merging.known()), **asked})
    known = _remembered(store, workload, device)
    if known and known[0].config["finished"]:
        return _best(placed, calls, merging, [(t.seconds, _schedule(t)) for t in known], True, 0)
    bench = Bench(placed, calls, device, merging=merging)
    costs = MeasuredCosts(calls, bench, device, store, versions, progress, merging)
    end = time.monotonic() + seconds
    widest = device.threads if device.is_host else None
    options = replace(options, limits=feasible(options.limits, device, merging), widest=options.widest or widest)
    found = search(graph, costs, options, lambda: time.monotonic() < end)
    check(graph, found.schedule)
    schedules = _rivals((found.schedule, options.greedy(graph)), costs, options)
    networks = [staged(placed, calls, schedule or sequential(graph), merging=merging) for schedule in schedules]
    times = compare(networks, device)
    for schedule, taken in zip(schedules, times, strict=True):
        config = Config("stages", {"stages": [s.text() for s in schedule or ()], "finished": found.finished})
        store.add(Trial(workload, device.key, config, VERSION, tuple(taken), versions=versions or {}))
    medians = zip(map(median, times), schedules, strict=True)
    best = _best(placed, calls, merging, list(medians), found.finished, costs.measured)
    there_is = feasible(None, device, merging)  # what is beyond was not left out
    lines = (b.cut_text() for b in found.blocks if there_is is None or b.cut.operators or b.limits != there_is)
    return replace(best, cuts=tuple(filter(None, lines)))


def feasible(limits: Limits | None, device: Device, merging: Merging) -> Limits | None:
    """On the CPU no more groups than threads, or than one kernel could compute: no others are enumerated."""
    if not device.is_host:
        return limits
    merged = Counter(kind for kind in merging.kinds if kind is not None)
    groups = max(device.threads, *merged.values(), 0)
    limits = limits or Limits()
    return replace(limits, groups=groups if limits.groups is None else min(groups, limits.groups))


def _rivals(found: Sequence[Schedule], costs: MeasuredCosts, options: Options) -> list[Schedule | None]:
    """What is compared: one kernel after the other, and those schedules with stages of several groups that are within
    limits and can be on the device."""
    rivals: list[Schedule | None] = [None]
    for schedule in found:
        wide = [stage for stage in schedule if len(stage.groups) > 1]
        if wide and keeps(schedule, options.limits) and all(math.isfinite(costs.seconds(stage)) for stage in wide):
            divided = tuple(costs.divided(stage) for stage in schedule)
            if divided not in rivals:
                rivals.append(divided)
    return rivals


def _remembered(store: Store, workload: Workload, device: Device) -> list[Trial]:
    """The latest trial of one kernel after the other, and those in stages that it was compared with: the ones since."""
    trials = [t for t in store.trials(workload, device.key) if t.template_version == VERSION and t.ok]
    alone = max((t for t in trials if not t.config["stages"]), key=lambda t: t.created, default=None)
    if alone is None:
        return []
    return [alone, *(t for t in trials if t.config["stages"] and t.created >= alone.created)]


def _schedule(trial: Trial) -> Schedule | None:
    return tuple(Stage.from_text(text) for text in trial.config["stages"]) or None


def _best(
    placed: Placed,
    calls: Calls,
    merging: Merging,
    times: Sequence[tuple[float, Schedule | None]],
    finished: bool,
    measured: int,
) -> StagePlan:
    alone = next(seconds for seconds, schedule in times if schedule is None)
    seconds, schedule = min(times, key=lambda pair: (pair[0], pair[1] is not None))
    if schedule is not None:
        check(calls.graph(merging.kinds), schedule)
        placed = staged(placed, calls, schedule, merging=merging)
    return StagePlan(placed, schedule, seconds, alone, finished, measured)


def compare(networks: Sequence[Placed], device: Device, rounds: int = ROUNDS) -> list[list[float]]:
    """Seconds of whole inferences of networks with the same inputs, on one device, in turns."""
    place, host = device.tvm_device(), Host(device.threads) if device.is_host else None
    programs = [compile_module(n.module, host_of([device.target]), 1) for n in networks]
    machines = [relax.VirtualMachine(p, place) if host is None else host.machine(p) for p in programs]
    inputs = [_random(p.ty, place) for p in networks[0].module["main"].params]
    found: list[list[float]] = [[] for _ in networks]
    with nullcontext() if host is None else host.computing():
        for i in range(rounds + 1):
            for times, machine in zip(found, machines, strict=True):
                started = time.perf_counter()
                machine["main"](*inputs)
                place.sync()
                if i:  # the first warms up
                    times.append(time.perf_counter() - started)
    return found


def _random(ty: Any, place: tvm.runtime.Device) -> Any:
    shape, dtype = [int(s) for s in ty.shape], str(ty.dtype)
    normal = np.random.default_rng(0).standard_normal(shape) if dtype.startswith("float") else np.zeros(shape)
    return tvm.runtime.tensor(normal.astype(dtype), place)
