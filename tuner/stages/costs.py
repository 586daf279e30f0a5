"""What stages of a network take on its device: from the tuning database, measured where it lacks them. Start at
`MeasuredCosts`.

A stage is a trial of a workload of its own, "stage", under a canonical key: for every group, what its kernels compute
(their structural hashes) and which of them each reads; on the host also its number of threads, of those that the
device's key has (one kernel alone is timed on fewer than all, too: that is its group's work, and what it may take
beside others). A merged stage is marked as one, and has the merged kernel's hash instead. So networks that repeat a
block measure it once. A stage of several groups, or merged, takes what its kernels take one by one and what it took
beyond them where both ran in turn; on streams, also what that costs the network besides (kernels behind joined streams
may be held up), which is one figure of a network for each number of groups. A search has stages measured roughly, in
few runs, and those once more, in as many as it takes, that it would choose.
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

from templates.gpu.lowered import lower, nodes
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
VERSION = 6  # of how stages are timed: older times are measured again
# Until it is known how much estimates promise, they promise a little more than kernels that share nothing could give.
PROMISE = 0.95
_FASTER = 1.25  # than the fastest of its members a merged kernel may be: it is larger
_TICK = 1e-9  # what a driver's clock counts
_ENOUGH = 24  # measured stages after which their ratio to the estimates is known
_RESIDENT = 2048  # work-items that fill a compute unit of a GPU
_ROUGHLY = 5  # runs


class MeasuredCosts:
    """Costs of a network's stages for `search`. What is measured is added to the store at once. Groups of one stage are
    timed together, on their streams or, on the host, on their parts of its threads; a stage of one group takes what its
    calls take."""

    def __init__(
        self,
        calls: Calls,
        bench: StageBench,
        device: Device,
        *,
        store: Store,
        versions: dict[str, Any] | None = None,
        progress: Callable[[int], None] = lambda _measured: None,
        merging: Merging | None = None,
    ) -> None:
        """`progress` is told how many stages have been timed. `merging`: what has the kernels of merged stages; without
        it there are none."""
        self._merging = merging
        self._calls, self._bench, self._device, self._store = calls, bench, device, store
        self._versions, self._progress = versions or {}, progress
        self._graph, self._kernels = calls.graph(), kernel_hashes(calls)
        self._network = network_key(self._kernels, self._graph)
        self._known: dict[str, float] = {}
        self._measured_roughly: set[str] = set()
        self._by_stage: dict[Stage, str] = {}  # keys of their workloads
        self._workloads: dict[Stage, Workload] = {}
        self._ratios: list[float] = []
        self.measured = 0

    def seconds(self, stage: Stage) -> float:
        """Infinity where the stage cannot be: no kernel computes it as one, or on the host it has more groups than
        there are threads, or a kernel in one of several must be alone. Raises BadInput, naming the kernel, where one
        alone cannot be timed."""
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
        """Whether nothing has to be measured to tell its seconds."""
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
        """The longest group, or what the kernels take that would fill the device, whichever is more. Of a merged stage
        see `_least_merged`. What is known needs no estimate."""
        if len(stage.groups) == 1 or stage in self._by_stage or self.known(stage):
            return None
        return self._least_merged(stage) if stage.merged else self._least(stage)

    def is_rough(self, stage: Stage) -> bool:
        return self._by_stage.get(stage) in self._measured_roughly

    def divided(self, stage: Stage) -> Stage:
        """On the host, a stage of several groups with the threads of each, by the work of its kernels: the seconds that
        they take on one thread. Any other stage as it is. Raises BadInput for more groups than threads, and as
        `seconds`."""
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
        """Kernels that nothing may run beside."""
        functions = self._calls.module.functions.items()
        return frozenset(
            g.name_hint for g, f in functions if isinstance(f, tirx.PrimFunc) and must_be_alone(f, self._device.target)
        )

    def correction(self) -> float:
        """By what was measured so far: of 20 stages, one takes less than its estimate times this."""
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
        """A merged kernel has all to do that any of its members has; and the flop of its padded kernels, hardly faster
        than the fastest of its members has its own where it fills the device."""
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
        """Seconds of one kernel; on the host, on so many threads (default: all)."""
        stage = self._single(i, threads)
        if stage not in self._by_stage:
            self._by_stage[stage] = self._key(stage)
        seconds = self._known[self._by_stage[stage]]
        if math.isinf(seconds):
            raise BadInput(f"stages: the kernel {self._calls.kernels[i].name} cannot be timed on {self._device.title}")
        return seconds

    def _singles(self, i: int, together: bool) -> list[Stage]:
        """What has to be known of a kernel: on the host, beside others, also what it takes on one thread, for the
        stage's threads are divided by that."""
        one = [self._single(i, 1)] if together and self._device.is_host else []
        return [self._single(i), *one]

    def _behind_workload(self, groups: int) -> Workload:
        return Workload("stage", {"behind": self._network, "streams": groups})

    def _behind(self, groups: int, stages: Sequence[Stage]) -> float:
        """Seconds that a stage on so many streams costs the network beyond what passes in it: a driver's way, the same
        of every one. Measured with some, if it is not known."""
        if self._device.is_host:
            return 0.0
        self._measure_behind({groups: stages})
        return self._known[self._behind_workload(groups).key]

    def _measure_behind(self, together: Mapping[int, Sequence[Stage]]) -> None:
        """By the number of groups."""
        workloads = {groups: self._behind_workload(groups) for groups in together}
        new = [groups for groups, workload in workloads.items() if not self._is_known(workload)]
        for groups, times in zip(new, self._bench.behind([together[groups] for groups in new]), strict=True):
            self._add(workloads[groups], tuple(max(s, _TICK) for s in times))

    def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
        """Measure what is not known of stages, and of the operators of those that are one group, in as few runs of the
        network as can be. `roughly`: stages of several groups in few runs; without, also those that are known so."""
        possible = [stage for stage in stages if self._can_be(stage)]
        wide = [stage for stage in possible if len(stage.groups) > 1]
        every = {i for stage in possible for i in numbers(stage.members)}
        beside = {i for stage in wide if not stage.merged for i in numbers(stage.members)}
        self._measure([single for i in sorted(every) for single in self._singles(i, i in beside)])
        self._measure([self.divided(stage) for stage in wide], _ROUGHLY if roughly else None)
        together: dict[int, list[Stage]] = defaultdict(list)
        for stage in wide:
            key = self._workload(self.divided(stage)).key
            if not stage.merged and math.isfinite(self._known.get(key, math.inf)):  # the device refuses some
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
            return  # which stage it was shows when each is measured alone
        for workload, stage in waiting.values():
            self._add(workload, self._whole(stage, found[stage]))

    def _key(self, stage: Stage) -> str:
        """Of a stage's workload, which is measured if it is not known."""
        workload = self._workload(stage)
        if not self._is_known(workload):
            try:
                self._add(workload, self._whole(stage, self._bench.seconds([stage])[stage]))
            except RuntimeError as error:
                self._add(workload, (), Failure(FailureKind.RUN, last_line(error)))
        return workload.key

    def _whole(self, stage: Stage, times: tuple[float, ...]) -> tuple[float, ...]:
        """Seconds of a stage; of one of several groups the bench says what it takes beyond its kernels' own."""
        if len(stage.groups) == 1:
            return times
        alone = sum(self._alone(i) for group in stage.groups for i in group)
        return tuple(max(alone + seconds, _TICK) for seconds in times)

    def _is_known(self, workload: Workload) -> bool:
        """Here, or in the store."""
        if workload.key not in self._known and workload.key in self._stored:
            trials = [t for t in self._store.trials(workload, self._device.key) if t.template_version == VERSION]
            if trials:
                self._know(trials[-1])  # the last that was added, whatever a clock said
        return workload.key in self._known

    @cached_property
    def _stored(self) -> frozenset[str]:
        """The keys of what the store has of the device: asked once, for most stages are in no store."""
        return frozenset(workload.key for workload in self._store.workloads(self._device.key))

    def _add(self, workload: Workload, times: tuple[float, ...], failure: Failure | None = None) -> None:
        self.measured += 1
        self._progress(self.measured)
        trial = Trial(workload, self._device.key, STAGE, VERSION, times, failure, versions=self._versions)
        self._store.add(trial)
        self._know(trial)

    def _know(self, trial: Trial) -> None:
        self._known[trial.workload.key] = trial.seconds
        if 0 < len(trial.times) <= _ROUGHLY:
            self._measured_roughly.add(trial.workload.key)

    def _merged(self, stage: Stage) -> MergedKernel | None:
        return None if self._merging is None else self._merging.kernel(stage)

    def _workload(self, stage: Stage) -> Workload:
        """Made once: a search asks for those of its kernels again for every stage that they could be in."""
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
        """A text for every group, sorted: the kernels with the places in the group of what they read there. On the host
        behind the number of the group's threads."""
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
    """What every call computes, as a hash."""
    functions = {g.name_hint: f for g, f in calls.module.functions.items() if isinstance(f, tirx.PrimFunc)}
    hashes = {name: kernel_hash(f) for name, f in functions.items()}
    return tuple(hashes[call.name] for call in calls.kernels)


def network_key(kernels: Sequence[str], graph: OperatorGraph, merges: Mapping[str, str] | None = None) -> str:
    """A digest of a network's calls: which kernels, in which order, and which of them each reads. `merges`: how those
    of them that may be merged would be computed."""
    calls = [[kernel, *o.reads] for kernel, o in zip(kernels, graph.operators, strict=True)]
    text = json.dumps([calls, dict(sorted(merges.items()))] if merges else calls)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def share_of(function: tirx.PrimFunc, device: Device) -> float:
    """How much of a device a kernel keeps busy, 1 at most: by its groups on a processor, by its items on a GPU."""
    extents: dict[str, int] = {}
    for loop in nodes(tirx.For, function):
        if loop.thread_binding is not None:
            _widen(extents, str(loop.thread_binding.thread_tag), loop.extent)
    for node in nodes(tirx.AttrStmt, function):
        if node.attr_key == "thread_extent":
            _widen(extents, str(node.node.thread_tag), node.value)
    groups = math.prod(n for tag, n in extents.items() if tag.startswith("blockIdx"))
    items = groups * math.prod(n for tag, n in extents.items() if tag.startswith("threadIdx"))
    units = int(device.key.attrs.get("compute_units", 1))
    return min(1.0, groups / units if device.key.family == "cpu" else items / (units * _RESIDENT))


def must_be_alone(function: tirx.PrimFunc, target: Target) -> bool:
    """Whether nothing may run beside a kernel. On the host: if it calls another library, which has threads of its own,
    for all cores, and what that has prepared is for one call at a time. On CUDA: if it allocates memory for itself,
    or launches several kernels, which hand each other results there: TVM takes such memory from a pool of the thread's,
    to which it is given back once the kernels are queued, and the next may get it, on whichever stream. (Our OpenCL
    runtime's is of a stream.)"""
    if target.kind.name == "llvm":
        return any(getattr(call.op, "name", "") == "tirx.tvm_call_packed" for call in nodes(Call, function))
    if target.kind.name != "cuda":
        return False
    lowered = lower(function, target)
    return lowered.workspace_bytes > 0 or len(lowered.kernels) > 1


def _widen(extents: dict[str, int], tag: str, extent: Any) -> None:
    extents[tag] = max(extents.get(tag, 1), int(extent))
