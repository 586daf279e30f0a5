"""Defines the messages that the tuner and its workers exchange. All of them are pickled; targets travel as their JSON
text."""

from __future__ import annotations

from dataclasses import dataclass

from board_agent.timing import Repetition
from tuner.devices.board import Standing
from tuner.measure.runner import Candidate
from tuning_db.record import DeviceKey, Failure, Workload


@dataclass(frozen=True)
class BuilderSettings:
    """Settings that a build worker is started with. `device` is the device's name. `threads` is the number of threads
    that the preflight kernel is built for. `memory_bytes` is what one build may allocate. `binaries` is where a
    driver's compiled programs go, None where there are none. `form` says in what form candidates are built, see
    `devices.Form`."""

    device: str
    target: str
    linker: str
    threads: int
    memory_bytes: int
    binaries: str | None
    form: str = "library"


@dataclass(frozen=True)
class BuildJob:
    """Build `candidate` into the file `library`. Where `candidate` is None, build the preflight kernel."""

    candidate: Candidate | None
    library: str


@dataclass(frozen=True)
class WarmJob:
    """Run a built candidate once, on zeros, on a device whose driver compiles kernels when they are first run. All
    cores then compile, and the measuring worker finds compiled kernels. The answer is always BuildDone: if the
    candidate fails, the measuring worker is to find out."""

    library: str


@dataclass(frozen=True)
class BuildDone:
    """Answers a BuildJob or a WarmJob. `failure` is None where the library was written. `resident_bytes` is the memory
    that the worker has now."""

    failure: Failure | None
    resident_bytes: int


@dataclass(frozen=True)
class ExecutorSettings:
    """Settings that the measuring worker is started with. `device` is the device's name. `cpus` are the worker's cores,
    one per thread on a CPU. `preflight` is the library of the preflight kernel, which starts the thread pool.
    `binaries` is as in BuilderSettings. `pool` is the library that runs parallel loops; None leaves them to TVM.

    `run_seconds` is the time that a board gives a candidate. `key` says what kind of board it has to be.
    `reference_seconds` is what the preflight kernel took when it was last measured.
    """

    device: str
    target: str
    threads: int
    cpus: tuple[int, ...]
    preflight: str
    cold_bytes: int
    tolerance: float | None
    memory_bytes: int
    seed: int
    binaries: str | None
    pool: str | None
    run_seconds: float
    key: DeviceKey | None = None
    reference_seconds: float | None = None


@dataclass(frozen=True)
class Prepare:
    """Make the operands and the reference of a workload. The answer is Prepared, which the start of a worker also
    sends."""

    workload: Workload


@dataclass(frozen=True)
class RunJob:
    """Check one built candidate and time it. `best_seconds` is the incumbent's time. The answer is RunDone."""

    candidate: Candidate
    library: str
    repetition: Repetition
    best_seconds: float | None


@dataclass(frozen=True)
class CompareJob:
    """Time built candidates of one workload in alternation; all of them were checked before. The answer is
    CompareDone."""

    candidates: tuple[Candidate, ...]
    libraries: tuple[str, ...]
    rounds: int


@dataclass(frozen=True)
class Prepared:
    """Says that preparing has ended. `problem` is one line if it failed."""

    problem: str | None = None


@dataclass(frozen=True)
class RunDone:
    """Answers a RunJob with either `times` (seconds per call) or `failure`. `error` is relative to the largest
    reference value. For `throttled` and `condition` see `targets.executor.Executor`.

    `check_seconds` is known for a candidate that is right: the time that went neither into loading nor into timing it.
    It includes the time of making operands and references for it.
    """

    times: tuple[float, ...]
    failure: Failure | None
    error: float | None
    resident_bytes: int
    throttled: str = ""
    condition: str = ""
    check_seconds: float = 0.0


@dataclass(frozen=True)
class CompareDone:
    """Answers a CompareJob. `times` has, for each candidate, the seconds per call in each round. For `throttled` and
    `condition` see `targets.executor.Executor`."""

    times: tuple[tuple[float, ...], ...]
    throttled: str = ""
    condition: str = ""


@dataclass(frozen=True)
class Waiting:
    """Sent now and then before the first answer, while others measure on the board. `standing` says who measures, and
    how many turns away this host's turn is."""

    standing: Standing


@dataclass(frozen=True)
class Speed:
    """Sent now and then before an answer, when the preflight kernel was measured: `seconds` is its time per call."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """Sent in place of an answer, as the last message. The device cannot be reached any more (see DeviceLost) or, with
    `turn_over`, it is other hosts' turn (see TurnOver). `running` says that a candidate ran there."""

    message: str
    running: bool
    turn_over: bool = False
