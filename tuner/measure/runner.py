"""What measuring is about: Candidate in, Trial out, through a Runner, as MeasureOptions say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from board_agent.timing import Repetition
from tuning_db.record import Config, Trial, Workload


@dataclass(frozen=True)
class Candidate:
    """A config to measure on a workload."""

    workload: Workload
    config: Config


@dataclass(frozen=True)
class MeasureOptions:
    """How candidates are built, run and judged. Sizes in bytes; None means "from this machine".

    `compile_seconds`, `run_seconds`: deadlines of one candidate's build and of its check and timing.
    `builders`: build processes (default: one per usable core).
    `cold_bytes`: weights rotate through copies of at least this size in total, so that every call finds them in main
    memory as it would inside a network (default: twice the last-level cache).
    `tolerance`: largest accepted error relative to the largest value of the float64 reference (default: the dtype's).
    `memory_bytes`: how much one candidate may allocate while it is built or run.
    `seed`: of the random operands, and of the order in which `compare` alternates.
    `plugins`: modules to import, here and in the child processes, for the templates that they register.
    `ray`: the address of a Ray cluster whose machines build (see ray_builders.check_ray).
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
    """What a runner's work took so far, in wall seconds. `build_seconds`: those in which nothing was measured;
    `check_seconds`: of the others, those in which right candidates were checked, on a device of this machine."""

    build_seconds: float = 0.0
    run_seconds: float = 0.0
    check_seconds: float = 0.0


class Closing(Protocol):
    """Owns processes and files until it is closed, as the end of a `with` block does."""

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
    impossible (BadInput) or wrong. Not to be shared between threads.

    `width`: candidates that it measures at a time; `ready`: trials that `measure` gives without waiting for them;
    `spent`: what that took so far, which it keeps up to date."""

    spent: Spent
    width: int = 1
    ready: int = 0

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None) -> Iterator[Trial]:
        """One trial per candidate, each as soon as it is known; in order, where `width` is 1. Where it is more,
        candidates are asked for as there is room for them, some time before they are measured.

        `best_seconds`: the best known time of the first candidate's workload; clearly slower candidates are given up
        early. Times found on the way count as well. Closing the iterator stops what is under way.
        """
        ...

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Measure candidates of one workload against each other: alternated in random order over several rounds, so
        that drift of the machine falls on all of them. One trial per candidate, in order; one time per round."""
        ...

    def disturbed(self) -> Sequence[Trial]:
        """Trials among those that `measure` gave of which it is known now that the device changed its speed meanwhile.
        Each is told once."""
        return ()

    def remarks(self) -> Sequence[str]:
        """What a person should know of the measurements so far, a line each."""
        return ()
