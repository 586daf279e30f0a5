"""Defines what measuring is: a `Runner` takes Candidates, measures them as MeasureOptions say, and returns Trials.
Start at `Runner`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from board_agent.timing import Repetition
from tuning_db.record import Config, Trial, Workload


@dataclass(frozen=True)
class Candidate:
    """A config that is to be measured on a workload."""

    workload: Workload
    config: Config


@dataclass(frozen=True)
class MeasureOptions:
    """Options that say how candidates are built, run and judged. Sizes are in bytes; None means "from this machine".

    `compile_seconds` and `run_seconds` are the deadlines of one candidate's build and of its check and timing.
    `builders` is the number of build processes (default: one per usable core).
    `cold_bytes` is the least total size of the copies of a weight through which calls rotate, so that every call finds
    the weight in main memory as it would inside a network (default: twice the last-level cache).
    `tolerance` is the largest accepted error relative to the largest value of the float64 reference (default: the
    dtype's).
    `memory_bytes` is how much one candidate may allocate while it is built or run.
    `repetition` says how often a call is repeated, and `compare_rounds` how many rounds a comparison has.
    `seed` decides the random operands, and the order in which `compare` alternates.
    `plugins` are modules to import, here and in the child processes, for the templates that they register.
    `ray` is the address of a Ray cluster whose machines build (see `ray.builders.check_ray`).
    """

    compile_seconds: float = 20.0
    run_seconds: float = 10.0
    builders: int | None = None
    cold_bytes: int | None = None
    tolerance: float | None = None
    memory_bytes: int | None = None
    repetition: Repetition = field(default_factory=Repetition)
    compare_rounds: int = 9
    seed: int = 0
    plugins: tuple[str, ...] = ()
    ray: str | None = None


@dataclass
class Spent:
    """Wall seconds that a runner has spent so far. `build_seconds` counts the time in which nothing was measured, and
    `run_seconds` the other. `check_seconds` is the part of `run_seconds` in which right candidates were checked, on a
    device of this machine."""

    build_seconds: float = 0.0
    run_seconds: float = 0.0
    check_seconds: float = 0.0


class Closing(Protocol):
    """A context manager that owns processes and files until it is closed, which the end of a `with` block does."""

    def close(self) -> None:
        """End every child process and remove every temporary file. More calls do nothing."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Runner(Closing, Protocol):
    """Measures candidates. A candidate's failure is part of its trial; an exception means that measuring itself is
    impossible (BadInput) or wrong. Threads must not share a runner.

    `spent` is the time that the runner has taken so far, which it keeps up to date.
    """

    spent: Spent

    @property
    def width(self) -> int:
        """Return the number of candidates that are measured at a time."""
        return 1

    @property
    def ready(self) -> int:
        """Return the number of trials that `measure` can yield without waiting."""
        return 0

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """Yield one trial per candidate, each as soon as it is known; in order, where `width` is 1. Where `width` is
        more, candidates are taken as there is room for them, some time before they are measured.

        `best_seconds` is the incumbent's time on the first candidate's workload. Clearly slower candidates are given up
        early. Times that are found on the way count as well. Closing the iterator stops what is under way.
        """
        ...

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Measure candidates of one workload against each other. They alternate in random order over several rounds, so
        that drift of the machine falls on all of them. Return one trial per candidate, in order, with one time per
        round."""
        ...

    def disturbed(self) -> Sequence[Trial]:
        """Return the trials that `measure` has yielded and that are now known to be disturbed, because the device
        changed its speed meanwhile. Each trial is returned once."""
        return ()

    def remarks(self) -> Sequence[str]:
        """Return what a person should know about the measurements so far, a line each."""
        return ()
