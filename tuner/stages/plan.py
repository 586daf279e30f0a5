"""Decides in which stages a network is built, if any. The stages of a search are compared with one kernel after the
other and with the greedy schedule, and the result is remembered. On CUDA each is also compared as one captured graph.
Start at `plan_stages`.

Results are stored as trials of a workload of its own, "schedule". It stands for this very network (its kernels, so its
shapes and batch size, too) on this very device. All variants are timed end to end, as modules, in turns. Times of
different comparisons are not compared with each other.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.activity import activity
from tuner.devices import Device, opencl
from tuner.errors import BadInput, last_line
from tuner.graph import Placed, compile_module, host_of, why_not_captured
from tuner.stages.bench import StageBench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts, kernel_hashes, network_key
from tuner.stages.endings import Limits
from tuner.stages.host import Host
from tuner.stages.merge import Merging
from tuner.stages.options import StageOptions
from tuner.stages.rewrite import staged
from tuner.stages.schedule import Schedule, Stage, check
from tuner.stages.search import PATIENCE, Options, keeps, search
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import Store

_Way = tuple[Schedule | None, bool]  # stages, if any, and whether they are captured
VERSION = 8  # version of the search and the timing of schedules
ROUNDS = 15


@dataclass(frozen=True)
class StagePlan:
    """The network to build, and how its variants compare.

    - `placed` is the network to build, in the stages `schedule`; it says whether it is captured. `schedule` is None
      where one kernel after the other takes no more.
    - `seconds` and `sequential_seconds` are medians of whole inferences: of this network, and of one kernel after the
      other.
    - `finished` says whether the search had the time that it needed, and `measured` how many stages were timed now.
    - `cuts` says what this search did not examine, a line a block, and why there is no CUDA graph where one was
      possible.
    """

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
    options: StageOptions,
) -> StagePlan:
    """Return the best variant of a network as measured end to end: in the stages that a search finds, in those of the
    greedy schedule (if the device can run that within the limits), or one kernel after the other.

    What is known is not measured again. On the CPU a stage has at most as many groups as the device has threads.

    Raises BadInput if a kernel cannot be timed, or if the network cannot be run in stages on the device. That is so on
    a CPU with one thread, and on one without a C compiler for our thread pool. Raises RuntimeError if the device
    refuses (it may have no memory left), and DatabaseError if the store cannot be used.
    """
    if not device.is_host:
        opencl.load()  # this library switches streams, on CUDA too
    elif device.threads < 2:
        raise BadInput(
            "kernels that run at the same time need a thread each, and the CPU has one here: give --threads 2"
        )
    calls = Calls.of(placed)
    merging = Merging(placed, calls, device, store=store, exact=options.exact)
    graph = calls.graph(merging.kinds)
    asked = {} if options.search.limits is None else {"limits": str(options.search.limits)}
    workload = Workload("schedule", {"network": network_key(kernel_hashes(calls), graph, merging.known()), **asked})
    known = _remembered(store, workload, device)
    if known and known[0].config["finished"]:
        return _best(placed, calls, merging, times=[(t.seconds, _way(t)) for t in known], finished=True, measured=0)
    bench = StageBench(placed, calls, device, merging=merging)
    end = time.monotonic() + options.seconds
    possible = _possible(options.search, device, merging)
    with activity("timing stages") as timed:
        costs = MeasuredCosts(calls, bench, device, store=store, progress=timed, merging=merging)
        found = search(graph, costs, possible, lambda: time.monotonic() < end)
        check(graph, found.schedule)
        schedules = _rivals((found.schedule, possible.greedy(graph)), costs, possible)
    with activity(f"comparing the network in {len(schedules)} schedules"):
        ways, times, graphs = _compared(placed, calls, merging, schedules=schedules, device=device)
    for (schedule, captured), taken in zip(ways, times, strict=True):
        text = [s.text() for s in schedule or ()]
        config = Config("stages", {"stages": text, "captured": captured, "finished": found.finished})
        store.add(Trial(workload, device.key, config, VERSION, tuple(taken)))
    medians = list(zip(map(median, times), ways, strict=True))
    best = _best(placed, calls, merging, times=medians, finished=found.finished, measured=costs.measured)
    there_is = feasible(None, device, merging)  # stages beyond these limits are impossible, so they were not left out
    lines = (block.cut_text(there_is) for block in found.blocks)
    return replace(best, cuts=(*filter(None, lines), *graphs))


def _possible(options: Options, device: Device, merging: Merging) -> Options:
    """Return the options of a search for what the device can run."""
    widest = device.threads if device.is_host else None
    limits = feasible(options.limits, device, merging)
    return replace(options, limits=limits, widest=options.widest or widest, patience=options.patience or PATIENCE)


def feasible(limits: Limits | None, device: Device, merging: Merging) -> Limits | None:
    """Return limits for the CPU: no more groups than threads, or than one kernel could compute. No others are
    enumerated."""
    if not device.is_host:
        return limits
    merged = Counter(kind for kind in merging.kinds if kind is not None)
    groups = max(device.threads, *merged.values(), 0)
    limits = limits or Limits()
    return replace(limits, groups=groups if limits.groups is None else min(groups, limits.groups))


def _rivals(found: Sequence[Schedule], costs: MeasuredCosts, options: Options) -> list[Schedule | None]:
    """Return what is compared: one kernel after the other (None), and schedules with stages of several groups that are
    within the limits and possible on the device."""
    rivals: list[Schedule | None] = [None]
    for schedule in found:
        wide = [stage for stage in schedule if len(stage.groups) > 1]
        if wide and keeps(schedule, options.limits) and all(math.isfinite(costs.seconds(stage)) for stage in wide):
            divided = tuple(costs.divided(stage) for stage in schedule)
            if divided not in rivals:
                rivals.append(divided)
    return rivals


def _compared(
    placed: Placed, calls: Calls, merging: Merging, *, schedules: Sequence[Schedule | None], device: Device
) -> tuple[list[_Way], list[list[float]], list[str]]:
    """Return the variants, the seconds of each, and a line for each reason why some cannot be captured.

    The variants are the schedules and, on CUDA, the captured ones. Raises RuntimeError if the device refuses a network
    that is not captured.
    """
    ways: list[_Way] = [(schedule, False) for schedule in schedules]
    networks = [_network(placed, calls, merging, way) for way in ways]
    if device.target.kind.name != "cuda":
        return ways, compare(networks, device), []
    refusals = [why_not_captured(network.module, device.target) for network in networks]
    graphs = [(s, n) for s, n, why_not in zip(schedules, networks, refusals, strict=True) if why_not is None]
    lines = [f"no CUDA graph: {why_not}" for why_not in dict.fromkeys(filter(None, refusals))]
    try:
        times = compare([*networks, *(replace(network, captured=True) for _, network in graphs)], device)
    except RuntimeError as error:
        if not graphs:
            raise
        line = f"no CUDA graph: {last_line(error)}"
        return ways, compare(networks, device), [*lines, line]
    return [*ways, *((schedule, True) for schedule, _ in graphs)], times, lines


def _remembered(store: Store, workload: Workload, device: Device) -> list[Trial]:
    """Return the latest trial of one kernel after the other, and the trials in stages that it was compared with: later
    ones."""
    trials = [t for t in store.trials(workload, device.key) if t.template_version == VERSION and t.ok]
    plain = [t for t in trials if _way(t) == (None, False)]
    if not plain:
        return []
    since = trials[trials.index(plain[-1]) :]  # in the order in which they were added, whatever their timestamps
    return [t for t in since if t is plain[-1] or t not in plain]


def _way(trial: Trial) -> _Way:
    return tuple(Stage.from_text(text) for text in trial.config["stages"]) or None, bool(trial.config["captured"])


def _network(placed: Placed, calls: Calls, merging: Merging, way: _Way) -> Placed:
    """Return the network of a variant. One kernel after the other is the original network, which is not rewritten."""
    schedule, captured = way
    if schedule is not None:
        check(calls.graph(merging.kinds), schedule)
        placed = staged(placed, calls, schedule, merging=merging)
    return replace(placed, captured=True) if captured else placed


def _best(
    placed: Placed,
    calls: Calls,
    merging: Merging,
    *,
    times: Sequence[tuple[float, _Way]],
    finished: bool,
    measured: int,
) -> StagePlan:
    alone = next(seconds for seconds, way in times if way == (None, False))
    seconds, way = min(times, key=lambda pair: (pair[0], pair[1][0] is not None, pair[1][1]))
    best = _network(placed, calls, merging, way)
    return StagePlan(best, way[0], seconds, alone, finished, measured)


def compare(networks: Sequence[Placed], device: Device, rounds: int = ROUNDS) -> list[list[float]]:
    """Return the seconds of whole inferences of networks with the same inputs, on one device, in turns."""
    place, host = device.tvm_device(), Host(device.threads) if device.is_host else None
    programs = [
        compile_module(n.module, host_of([device.target]), 1, device.target if n.captured else None) for n in networks
    ]
    machines = [relax.VirtualMachine(p, place) if host is None else host.machine(p) for p in programs]
    inputs = [_random(p.ty, place) for p in networks[0].module["main"].params]
    found: list[list[float]] = [[] for _ in networks]
    with nullcontext() if host is None else host.computing():
        for i in range(rounds + 1):
            for times, machine, network in zip(found, machines, networks, strict=True):
                started = time.perf_counter()
                machine[network.entry](*inputs)
                place.sync()
                if i:  # the first warms up
                    times.append(time.perf_counter() - started)
    return found


def _random(ty: Any, place: tvm.runtime.Device) -> Any:
    shape, dtype = [int(s) for s in ty.shape], str(ty.dtype)
    normal = np.random.default_rng(0).standard_normal(shape) if dtype.startswith("float") else np.zeros(shape)
    return tvm.runtime.tensor(normal.astype(dtype), place)
