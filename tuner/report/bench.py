"""Compares a built module with its peers in one run. Start at `compare`, at `time_together` for several modules, or at
`time_on_board` for a module alone.

Every contender is a child process, because the thread pools of two systems in one process disturb each other by
orders of magnitude. All are pinned to the same CPUs and have the same number of threads. Blocks of runs alternate.
While one contender is timed all others are stopped (SIGSTOP), so that their spinning threads do not disturb it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from board_agent.timing import Repetition
from templates.reference import relative_error
from tuner.activity import activity
from tuner.arrays import write_arrays
from tuner.errors import BadInput
from tuner.measure.scratch import Scratch
from tuner.module import Manifest, Sizes, in_order_of, read_manifest, tolerance_for
from tuner.report.alternation import Contender, ContenderFailed, Streams, alternate
from tuner.report.contender import Spec
from tuner.report.operators import Profile
from tuner.report.peers import OURS, available, peer_named

if TYPE_CHECKING:
    from tuner.export.on_board import BoardNetwork

ROUNDS = 10
BLOCK_SECONDS = 0.4
_MOST_CALLS = 1_000_000  # in a block
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Measured:
    """The times that were measured of one contender.

    - `blocks` has the median seconds per run of each block.
    - `runs` is the number of runs in all blocks.
    - `percentiles` has the seconds that so many of 100 runs, of all blocks together, need at most: 50, 90 and 99. It is
      empty on a board, which does not tell each run's time.
    - `error` is the largest absolute difference between our outputs and the contender's, divided by the largest
      absolute value of the contender's. It is None for our own module.
    - `peak_bytes` is the most memory that the contender's whole process had: Python and all libraries are in it. It is
      None on a board, whose agent does not tell.
    """

    name: str
    version: str
    blocks: tuple[float, ...]
    runs: int
    peak_bytes: int | None
    percentiles: Mapping[int, float]
    error: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        version: str,
        blocks: Sequence[Sequence[float]],
        *,
        runs: int | None = None,
        peak_bytes: int | None = None,
        error: float | None = None,
    ) -> Measured:
        """Return what the seconds per run of each block say. `runs` is given where each of them is the mean of several
        runs."""
        times = [seconds for block in blocks for seconds in block]
        percentiles = {} if runs else dict(zip(_PERCENTILES, np.percentile(times, _PERCENTILES).tolist(), strict=True))
        medians = tuple(median(block) for block in blocks)
        return cls(name, version, medians, runs or len(times), peak_bytes, percentiles, error)

    @property
    def seconds(self) -> float:
        """Return the median over the blocks of the median seconds per run."""
        return median(self.blocks)

    @property
    def steadiness(self) -> float:
        """Return the slowest block's median divided by the median of all; 1 is perfectly steady."""
        return max(self.blocks) / self.seconds

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "median_seconds": self.seconds,
            "block_seconds": list(self.blocks),
            "steadiness": self.steadiness,
            "runs": self.runs,
            "percentile_seconds": {str(each): seconds for each, seconds in self.percentiles.items()},
            "relative_error": self.error,
            "process_peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Comparison:
    """A comparison that has the times of our module and of its peers, all with `threads` threads on `cpus`, and with
    `streams` inferences at the same time.

    `skipped` says why a peer is missing. `profile` tells where our module's time goes, and is None where that is not
    known, as on a board. `sizes` are our module's, None if an earlier version built it.
    """

    ours: Measured
    peers: tuple[Measured, ...]
    threads: int
    cpus: tuple[int, ...]
    skipped: Mapping[str, str]
    profile: Profile | None
    sizes: Sizes | None = None
    streams: int = 1

    def throughput(self, measured: Measured) -> float:
        """Return how many inferences a contender makes in a second, with all its streams."""
        return self.streams / measured.seconds

    def times_better(self, peer: Measured) -> float:
        """Return the peer's latency divided by ours; above 1, ours is faster."""
        return peer.seconds / self.ours.seconds

    def as_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "cpus": list(self.cpus),
            "streams": self.streams,
            "ours": {**self.ours.as_dict(), "inferences_per_second": self.throughput(self.ours)},
            "peers": [
                {
                    **peer.as_dict(),
                    "inferences_per_second": self.throughput(peer),
                    "times_better": self.times_better(peer),
                    "latency_ratio": self.ours.seconds / peer.seconds,
                }
                for peer in self.peers
            ],
            "skipped": dict(self.skipped),
            "profile": None if self.profile is None else self.profile.as_dict(),
            "sizes": self.sizes and self.sizes.figures(),
        }


@dataclass(frozen=True)
class BenchOptions:
    """The conditions that a comparison has. Every contender has `rounds` blocks of about `block_seconds`. It runs
    `streams` inferences at the same time, each with `threads` threads; all its threads are on `cpus`."""

    threads: int
    cpus: tuple[int, ...]
    rounds: int = ROUNDS
    block_seconds: float = BLOCK_SECONDS
    streams: int = 1


def compare(
    module: Path,
    model: Path,
    peers: Sequence[str],
    *,
    inputs: Mapping[str, np.ndarray],
    options: BenchOptions,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Time the built `module` and each of `peers` on the ONNX file `model`, alternating.

    A peer that is not installed, or that fails, is skipped with a reason. Raises BadInput for an unknown peer, and
    where none of the peers asked for is installed; ContenderFailed if our own module fails.
    """
    known = [peer_named(name) for name in dict.fromkeys(peers)]
    skipped = {peer.name: f"not installed: {peer.install}" for peer in known if not available(peer)}
    if known and len(skipped) == len(known):
        raise BadInput("; ".join(f"{name} is {reason}" for name, reason in skipped.items()))
    with ExitStack() as stack:
        folder = stack.enter_context(Scratch())
        write_arrays(folder / "inputs.npz", inputs)
        running: dict[str, Streams] = {}
        for name in [OURS, *(peer.name for peer in known if peer.name not in skipped)]:
            source = module if name == OURS else model
            try:
                with activity(f"starting {name}"):
                    running[name] = _streams(name, source, options, folder, stack)
            except ContenderFailed as failure:
                if name == OURS:
                    raise
                skipped[name] = str(failure)
        times = alternate(running, options.rounds, options.block_seconds, progress or (lambda _: None))
        with activity("profiling"):
            profile = Profile.from_dict(running[OURS].profile())
        manifest = read_manifest(module)
        measured = {
            name: _measured(name, running[name], times[name], folder=folder, manifest=manifest) for name in running
        }
    ours = measured.pop(OURS)
    return Comparison(
        ours,
        tuple(measured.values()),
        options.threads,
        options.cpus,
        skipped,
        profile,
        sizes=manifest.sizes,
        streams=options.streams,
    )


def time_together(
    modules: Mapping[str, Path],
    *,
    inputs: Mapping[str, np.ndarray],
    options: BenchOptions,
    progress: Callable[[str], None],
) -> dict[str, float]:
    """Time built modules of the same inputs, alternating. Return the seconds of an inference of each, as the median of
    its blocks. Raises ContenderFailed if one fails."""
    with ExitStack() as stack:
        folder = stack.enter_context(Scratch())
        write_arrays(folder / "inputs.npz", inputs)
        running: dict[str, Contender] = {}
        for number, (name, module) in enumerate(modules.items()):
            files = (str(folder / "inputs.npz"), str(folder / f"{number}.npz"))
            spec = Spec(OURS, str(module.resolve()), options.threads, options.cpus, *files)
            with activity(f"starting {name}"):
                running[name] = stack.enter_context(_started(spec, folder / f"{number}.log"))
        times = alternate(running, options.rounds, options.block_seconds, progress)
    return {name: median(map(median, blocks)) for name, blocks in times.items()}


def time_on_board(
    network: BoardNetwork,
    *,
    inputs: Mapping[str, np.ndarray],
    options: BenchOptions,
    progress: Callable[[str], None],
) -> Comparison:
    """Time a network on a board, in blocks as `compare` has. Raises BadInput if the board is gone."""
    timing = Repetition(least=_MOST_CALLS, most=_MOST_CALLS, seconds=options.block_seconds)  # until the time is over
    blocks, runs = [], 0
    for number in range(options.rounds):
        progress(f"round {number + 1} of {options.rounds}")
        times, calls = network.times(inputs, timing)
        blocks.append(times)
        runs += calls
    ours = Measured.of(OURS, f"edgetune {version('edgetune')}", blocks, runs=runs)
    return Comparison(ours, (), options.threads, options.cpus, {}, None)


def _streams(name: str, source: Path, options: BenchOptions, folder: Path, stack: ExitStack) -> Streams:
    """Start the processes of a contender. Raises ContenderFailed if one ends."""
    started = []
    for number in range(options.streams):
        outputs = f"{name}.npz" if number == 0 else f"{name}.{number}.npz"
        files = (str(folder / "inputs.npz"), str(folder / outputs))
        cpus = options.cpus[number * options.threads : (number + 1) * options.threads]
        spec = Spec(name, str(source.resolve()), options.threads, cpus, *files)
        started.append(stack.enter_context(_started(spec, folder / f"{outputs}.log")))
    return Streams(started)


def _started(spec: Spec, log: Path) -> Contender:
    command = [sys.executable, "-m", "tuner.report.contender", spec.to_json()]
    return Contender(f"{spec.peer} on {spec.source}", command, spec.threads, log)


def _measured(
    name: str, contender: Streams, blocks: Sequence[Sequence[float]], *, folder: Path, manifest: Manifest
) -> Measured:
    error = None if name == OURS else _relative_error(folder / f"{OURS}.npz", folder / f"{name}.npz", manifest)
    return Measured.of(name, contender.version, blocks, peak_bytes=contender.peak_bytes, error=error)


def _relative_error(ours: Path, theirs: Path, manifest: Manifest) -> float:
    with np.load(ours) as a, np.load(theirs) as b:
        found, wanted = dict(a), dict(b)
    found = in_order_of(wanted, found, manifest.outputs, tolerance_for(manifest))
    return max((relative_error(found[name], wanted[name]) for name in found), default=0.0)
