"""Provides what stages of a network cost: from the tuning database, or measured where it lacks them. Start at
`MeasuredCosts`.

A stage is a trial of a workload of its own, "stage", so that networks that repeat a block measure it once. Its
canonical key has:

- for every group, what its kernels compute (their structural hashes) and which kernels of the group each one reads;
- on the host, the number of threads of each group, as one kernel alone is also timed on fewer threads than the device
  key has: these times show a group's work, and what it may take beside others;
- for a merged stage, a flag and the hash of the merged kernel instead.

A stage of one group takes the sum of its kernels. A stage of several groups, or a merged one, adds to that what it took
beyond its kernels when both ran in turns. On streams a third term is added: what such a stage costs the network
besides, as kernels behind joined streams may be held up. It is one figure of a network for each number of groups.

A search first has stages measured roughly, in few runs. Those that it would choose are measured once more, in as many
runs as that takes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.ir import Call
from tvm.target import Target

from templates.gpu.lowered import lower
from templates.rewrite import nodes_of
from templates.workloads import conv_of
from tuner.devices import Device
from tuner.errors import BadInput, last_line
from tuner.graph import kernel_hash
from tuner.stages.bench import StageBench
from tuner.stages.calls import Calls
from tuner.stages.merge import MergedKernel, Merging
from tuner.stages.operators import OperatorGraph, numbers
from tuner.stages.schedule import Stage
from tuning_db.record import Config, Failure, FailureKind, Trial, Workload
from tuning_db.store import Store

STAGE = Config("stage", {})
VERSION = 6  # version of the timing of stages; times of older versions are measured again
# Estimates are multiplied by this until enough stages are measured. It promises a little more than kernels that share
# nothing could give.
PROMISE = 0.95
_FASTER = 1.25  # times the flop rate of its fastest member that a merged kernel may reach, as it is larger
_TICK = 1e-9  # seconds: the resolution of a driver's clock
_ENOUGH = 24  # measured stages after which their ratio to the estimates is known
_RESIDENT = 2048  # work-items that fill a compute unit of a GPU
_ROUGHLY = 5  # runs of a rough measurement


class MeasuredCosts:
    """Provides the costs of a network's stages for `search`. What is measured is added to the store at once.

    Groups of one stage are timed together: on their streams or, on the host, on their parts of its threads. A stage of
    one group takes what its calls take.
    """

    def __init__(
        self,
        calls: Calls,
        bench: StageBench,
        device: Device,
        *,
        store: Store,
        progress: Callable[[int], None] = lambda _measured: None,
        merging: Merging | None = None,
    ) -> None:
        """Prepare to measure. `progress` is called with the number of stages that have been timed. `merging` provides
        the kernels of merged stages; without it no stage can be merged."""
        self._merging = merging
        self._calls, self._bench, self._device, self._store = calls, bench, device, store
        self._progress = progress
        self._graph, self._kernels = calls.graph(), kernel_hashes(calls)
        self._network = network_key(self._kernels, self._graph)
        self._known: dict[str, float] = {}
        self._measured_roughly: set[str] = set()
        self._by_stage: dict[Stage, str] = {}  # the key of each stage's workload
        self._workloads: dict[Stage, Workload] = {}
        self._ratios: list[float] = []
        self.measured = 0

    def seconds(self, stage: Stage) -> float:
        """Return the seconds of a stage; infinity where the stage is impossible.

        A merged stage is impossible if no kernel computes it as one. A stage of several groups is impossible if it has
        more groups than the host has threads, or if one of its kernels must be alone. Raises BadInput, naming the
        kernel, where a kernel alone cannot be timed.
        """
        if not self._can_be(stage):
            return math.inf
        if len(stage.groups) == 1:
            return sum(self._alone(i) for i in stage.groups[0])
        is_new = stage not in self._by_stage
        if is_new:
            self._by_stage[stage] = self._key(self.divided(stage))
        seconds = self._known[self._by_stage[stage]]
        if math.isfinite(seconds) and not stage.merged:
            seconds += self._behind(len(stage.groups), [stage])
            if is_new:
                self._ratios.append(seconds / self._least(stage))
        return seconds

    def known(self, stage: Stage) -> bool:
        """Tell whether the seconds of a stage are known without measuring anything."""
        if not self._can_be(stage):
            return True
        together = len(stage.groups) > 1 and not stage.merged
        singles = (single for i in numbers(stage.members) for single in self._singles(i, together))
        if not all(self._is_known(self._workload(single)) for single in singles):
            return False
        if len(stage.groups) == 1:
            return True
        behind = [self._behind_workload(len(stage.groups))] if together and not self._device.is_host else []
        return all(map(self._is_known, [self._workload(self.divided(stage)), *behind]))

    def estimate(self, stage: Stage) -> float | None:
        """Return the least seconds that a stage may take, or None if they are known and need no estimate.

        That is the longest group, or the time of the kernels if they filled the device, whichever is more. For a merged
        stage see `_least_merged`.
        """
        if len(stage.groups) == 1 or stage in self._by_stage or self.known(stage):
            return None
        return self._least_merged(stage) if stage.merged else self._least(stage)

    def is_rough(self, stage: Stage) -> bool:
        return self._by_stage.get(stage) in self._measured_roughly

    def divided(self, stage: Stage) -> Stage:
        """Return a stage of several groups on the host with the threads of each group; any other stage is returned
        unchanged.

        Threads are divided by the work of the groups' kernels: the seconds that they take on one thread. Raises
        BadInput for more groups than threads, and as `seconds` does.
        """
        if not self._device.is_host or stage.merged or len(stage.groups) == 1:
            return stage
        works = [sum(self._alone(i, 1) for i in group) for group in stage.groups]
        return stage.divided(works, self._device.threads)

    def _can_be(self, stage: Stage) -> bool:
        if stage.merged:
            return self._merged(stage) is not None
        if len(stage.groups) == 1:
            return True
        if self._device.is_host and len(stage.groups) > self._device.threads:
            return False
        return not any(self._calls.kernels[i].name in self._of_one_stream for i in numbers(stage.members))

    @cached_property
    def _of_one_stream(self) -> frozenset[str]:
        """Return the names of the kernels that nothing may run beside."""
        functions = self._calls.module.functions.items()
        return frozenset(
            g.name_hint for g, f in functions if isinstance(f, tirx.PrimFunc) and must_be_alone(f, self._device.target)
        )

    def correction(self) -> float:
        """Return the factor for estimates that follows from the measured stages: one stage in 20 takes less than its
        estimate times this factor."""
        if len(self._ratios) < _ENOUGH:
            return PROMISE
        return sorted(self._ratios)[len(self._ratios) // 20]

    def _least(self, stage: Stage) -> float:
        if self._device.is_host:
            groups = zip(stage.groups, self.divided(stage).threads, strict=True)
            return max(sum(self._alone(i, threads) for i in group) for group, threads in groups)
        longest = max(sum(map(self._alone, group)) for group in stage.groups)
        filled = sum(self._alone(i) * self._shares[i] for group in stage.groups for i in group)
        return max(longest, filled)

    def _least_merged(self, stage: Stage) -> float:
        """Return the least seconds that a merged kernel may take. It has at least the work of each of its members. It
        also has the flop of its padded kernels, at a rate hardly higher than the best one that a member reaches, scaled
        to a full device."""
        kernel, merging = self._merged(stage), self._merging
        assert kernel is not None
        assert merging is not None
        members = list(numbers(stage.members))
        shares = [1.0 if self._device.is_host else self._shares[i] for i in members]
        rates = (merging.flop(i) / (self._alone(i) * share) for i, share in zip(members, shares, strict=True))
        flop = conv_of(kernel.workload).flop
        return max(PROMISE * max(map(self._alone, members)), flop / (_FASTER * max(rates)))

    def _single(self, i: int, threads: int | None = None) -> Stage:
        return Stage(((i,),), threads=(threads or self._device.threads,) if self._device.is_host else ())

    def _alone(self, i: int, threads: int | None = None) -> float:
        """Return the seconds of one kernel; on the host, on `threads` threads (default: all)."""
        stage = self._single(i, threads)
        if stage not in self._by_stage:
            self._by_stage[stage] = self._key(stage)
        seconds = self._known[self._by_stage[stage]]
        if math.isinf(seconds):
            raise BadInput(f"stages: the kernel {self._calls.kernels[i].name} cannot be timed on {self._device.title}")
        return seconds

    def _singles(self, i: int, together: bool) -> list[Stage]:
        """Return the stages of one kernel that must be known. On the host, a kernel beside others is also timed on one
        thread, as the stage's threads are divided by that."""
        one = [self._single(i, 1)] if together and self._device.is_host else []
        return [self._single(i), *one]

    def _behind_workload(self, groups: int) -> Workload:
        return Workload("stage", {"behind": self._network, "streams": groups})

    def _behind(self, groups: int, stages: Sequence[Stage]) -> float:
        """Return the seconds that a stage on `groups` streams costs the network beyond the stage's own time.

        They come from the driver and are the same for every such stage. If they are unknown, they are measured with
        `stages`.
        """
        if self._device.is_host:
            return 0.0
        self._measure_behind({groups: stages})
        return self._known[self._behind_workload(groups).key]

    def _measure_behind(self, together: Mapping[int, Sequence[Stage]]) -> None:
        """Measure what stages cost the network beyond their own time, for each number of groups that is not known
        yet."""
        workloads = {groups: self._behind_workload(groups) for groups in together}
        new = [groups for groups, workload in workloads.items() if not self._is_known(workload)]
        for groups, times in zip(new, self._bench.behind([together[groups] for groups in new]), strict=True):
            self._add(workloads[groups], tuple(max(s, _TICK) for s in times))

    def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
        """Measure what is unknown of stages, and of their operators alone, in as few runs of the network as possible.

        With `roughly`, stages of several groups are measured in few runs. Without it, those that are known only roughly
        are measured again.
        """
        possible = [stage for stage in stages if self._can_be(stage)]
        wide = [stage for stage in possible if len(stage.groups) > 1]
        every = {i for stage in possible for i in numbers(stage.members)}
        beside = {i for stage in wide if not stage.merged for i in numbers(stage.members)}
        self._measure([single for i in sorted(every) for single in self._singles(i, i in beside)])
        self._measure([self.divided(stage) for stage in wide], _ROUGHLY if roughly else None)
        together: dict[int, list[Stage]] = defaultdict(list)
        for stage in wide:
            key = self._workload(self.divided(stage)).key
            if not stage.merged and math.isfinite(self._known.get(key, math.inf)):  # else refused by the device
                together[len(stage.groups)].append(stage)
        if not self._device.is_host:
            self._measure_behind(together)

    def _measure(self, stages: Sequence[Stage], runs: int | None = None) -> None:
        waiting: dict[str, tuple[Workload, Stage]] = {}
        for stage in dict.fromkeys(stages):
            workload = self._workload(stage)
            if not self._is_known(workload) or (runs is None and workload.key in self._measured_roughly):
                waiting.setdefault(workload.key, (workload, stage))
        self._measured_roughly.difference_update(waiting)
        try:
            found = self._bench.seconds([stage for _, stage in waiting.values()], runs)
        except RuntimeError:
            return  # each is measured alone later, which shows which stage failed
        for workload, stage in waiting.values():
            self._add(workload, self._whole(stage, found[stage]))

    def _key(self, stage: Stage) -> str:
        """Return the key of a stage's workload, which is measured if it is not known."""
        workload = self._workload(stage)
        if not self._is_known(workload):
            try:
                self._add(workload, self._whole(stage, self._bench.seconds([stage])[stage]))
            except RuntimeError as error:
                self._add(workload, (), Failure(FailureKind.RUN, last_line(error)))
        return workload.key

    def _whole(self, stage: Stage, times: tuple[float, ...]) -> tuple[float, ...]:
        """Return the seconds of a stage. For a stage of several groups, `times` holds what it takes beyond its kernels
        alone."""
        if len(stage.groups) == 1:
            return times
        alone = sum(self._alone(i) for group in stage.groups for i in group)
        return tuple(max(alone + seconds, _TICK) for seconds in times)

    def _is_known(self, workload: Workload) -> bool:
        """Tell whether the seconds of a workload are known here or in the store."""
        if workload.key not in self._known and workload.key in self._stored:
            trials = [t for t in self._store.trials(workload, self._device.key) if t.template_version == VERSION]
            if trials:
                self._know(trials[-1])  # the last one added, whatever its timestamp
        return workload.key in self._known

    @cached_property
    def _stored(self) -> frozenset[str]:
        """Return the keys of the workloads that the store has of the device. They are read once, as most stages are not
        stored."""
        return frozenset(workload.key for workload in self._store.workloads(self._device.key))

    def _add(self, workload: Workload, times: tuple[float, ...], failure: Failure | None = None) -> None:
        self.measured += 1
        self._progress(self.measured)
        trial = Trial(workload, self._device.key, STAGE, VERSION, times, failure)
        self._store.add(trial)
        self._know(trial)

    def _know(self, trial: Trial) -> None:
        self._known[trial.workload.key] = trial.seconds
        if 0 < len(trial.times) <= _ROUGHLY:
            self._measured_roughly.add(trial.workload.key)

    def _merged(self, stage: Stage) -> MergedKernel | None:
        return None if self._merging is None else self._merging.kernel(stage)

    def _workload(self, stage: Stage) -> Workload:
        """Return the workload of a stage. It is cached, as a search asks again for every stage that a kernel could be
        in."""
        if stage not in self._workloads:
            self._workloads[stage] = self._new_workload(stage)
        return self._workloads[stage]

    def _new_workload(self, stage: Stage) -> Workload:
        kernel = self._merged(stage) if stage.merged else None
        if kernel is None:
            return Workload("stage", {"groups": self._groups(stage)})
        return Workload(
            "stage", {"groups": (json.dumps([[kernel_hash(kernel.function)]]),), "merged": len(stage.groups)}
        )

    def _groups(self, stage: Stage) -> tuple[str, ...]:
        """Return a text for every group, sorted: its kernels, each with the positions in the group of those it reads.
        On the host the number of the group's threads comes first."""
        found = []
        for number, group in enumerate(stage.groups):
            place = {i: n for n, i in enumerate(group)}
            reads = [[place[r] for r in self._graph.operators[i].reads if r in place] for i in group]
            text = json.dumps([[self._kernels[i], *r] for i, r in zip(group, reads, strict=True)])
            found.append(f"{stage.threads[number]} threads: {text}" if stage.threads else text)
        return tuple(sorted(found))

    @cached_property
    def _shares(self) -> tuple[float, ...]:
        functions = {g.name_hint: f for g, f in self._calls.module.functions.items()}
        shares = {c.name: share_of(functions[c.name], self._device) for c in self._calls.kernels}
        return tuple(shares[c.name] for c in self._calls.kernels)


def kernel_hashes(calls: Calls) -> tuple[str, ...]:
    """Return a hash of what each call computes."""
    functions = {g.name_hint: f for g, f in calls.module.functions.items() if isinstance(f, tirx.PrimFunc)}
    hashes = {name: kernel_hash(f) for name, f in functions.items()}
    return tuple(hashes[call.name] for call in calls.kernels)


def network_key(kernels: Sequence[str], graph: OperatorGraph, merges: Mapping[str, str] | None = None) -> str:
    """Return a digest of a network's calls: which kernels, in which order, and which of them each one reads. `merges`
    says how those that may be merged would be computed."""
    calls = [[kernel, *o.reads] for kernel, o in zip(kernels, graph.operators, strict=True)]
    text = json.dumps([calls, dict(sorted(merges.items()))] if merges else calls)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def share_of(function: tirx.PrimFunc, device: Device) -> float:
    """Return the share of a device that a kernel keeps busy, at most 1: by its groups on a processor, by its items on a
    GPU."""
    extents: dict[str, int] = {}
    for loop in nodes_of(function, tirx.For):
        if loop.thread_binding is not None:
            _widen(extents, str(loop.thread_binding.thread_tag), loop.extent)
    for node in nodes_of(function, tirx.AttrStmt):
        if node.attr_key == "thread_extent":
            _widen(extents, str(node.node.thread_tag), node.value)
    groups = math.prod(n for tag, n in extents.items() if tag.startswith("blockIdx"))
    items = groups * math.prod(n for tag, n in extents.items() if tag.startswith("threadIdx"))
    units = int(device.key.attrs.get("compute_units", 1))
    return min(1.0, groups / units if device.key.family == "cpu" else items / (units * _RESIDENT))


def must_be_alone(function: tirx.PrimFunc, target: Target) -> bool:
    """Tell whether nothing may run beside a kernel.

    On the host that holds if it calls another library. Such a library has threads of its own for all cores, and what it
    has prepared serves one call at a time. On CUDA it holds if the kernel allocates memory for itself, or consists of
    several launches that pass results in such memory. TVM takes it from a pool of the thread and gives it back once the
    kernels are queued, so that the next kernel may get it on any stream. (Our OpenCL runtime has one pool a stream.)
    """
    if target.kind.name == "llvm":
        return any(getattr(call.op, "name", "") == "tirx.tvm_call_packed" for call in nodes_of(function, Call))
    if target.kind.name != "cuda":
        return False
    lowered = lower(function, target)
    return lowered.workspace_bytes > 0 or len(lowered.kernels) > 1


def _widen(extents: dict[str, int], tag: str, extent: Any) -> None:
    extents[tag] = max(extents.get(tag, 1), int(extent))
