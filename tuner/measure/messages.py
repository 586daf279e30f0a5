"""What goes between the tuner and its workers. All of it is pickled; targets travel as their JSON text."""

from __future__ import annotations

from dataclasses import dataclass

from board_agent.timing import Repetition
from tuner.devices.board import Standing
from tuner.measure.runner import Candidate
from tuning_db.record import DeviceKey, Failure, Workload


@dataclass(frozen=True)
class BuilderSettings:
    """`device`: its name. `threads`: what the preflight kernel is built for. `memory_bytes`: what one build may
    allocate. `binaries`: where a driver's compiled programs go; None where there are none. `form`: of what is built,
    see devices.form_of."""

    device: str
    target: str
    linker: str
    threads: int
    memory_bytes: int
    binaries: str | None
    form: str = "library"


@dataclass(frozen=True)
class BuildJob:
    """Build `candidate` (None: the preflight kernel) into the file `library`."""

    candidate: Candidate | None
    library: str


@dataclass(frozen=True)
class WarmJob:
    """Run a built candidate once, on zeros, on a device whose driver compiles kernels when they are run: all cores
    compile, and what measures finds them compiled. Answered by BuildDone, whatever comes of it: the candidate's failure
    is for the executor to find."""

    library: str


@dataclass(frozen=True)
class BuildDone:
    """`failure` is None where the library was written. `resident_bytes`: of the worker, now."""

    failure: Failure | None
    resident_bytes: int


@dataclass(frozen=True)
class ExecutorSettings:
    """`device`: its name. `cpus`: one per thread. `preflight`: the library that starts the thread pool. `binaries`: as
    of BuilderSettings. `pool`: the library that runs parallel loops (None: TVM does). `run_seconds`: what a board gives
    a candidate; `key`: what kind of board it has to be; `reference_seconds`: what the preflight kernel took last."""

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
    """Make operands and reference of a workload. Answered by Prepared, like the start of a worker."""

    workload: Workload


@dataclass(frozen=True)
class RunJob:
    """Check one built candidate and time it. Answered by RunDone."""

    candidate: Candidate
    library: str
    repetition: Repetition
    best_seconds: float | None


@dataclass(frozen=True)
class CompareJob:
    """Alternate built candidates of one workload that were checked before. Answered by CompareDone."""

    candidates: tuple[Candidate, ...]
    libraries: tuple[str, ...]
    rounds: int


@dataclass(frozen=True)
class Prepared:
    """`problem`: one line where it failed."""

    problem: str | None = None


@dataclass(frozen=True)
class RunDone:
    """Either `times` (seconds per call) or `failure`. `error`: relative to the largest reference value; `throttled` and
    `condition`: see place.Place; `check_seconds`: of a candidate that is right, what was neither
    loading nor timing it, operands and references that were made for it included."""

    times: tuple[float, ...]
    failure: Failure | None
    error: float | None
    resident_bytes: int
    throttled: str = ""
    condition: str = ""
    check_seconds: float = 0.0


@dataclass(frozen=True)
class CompareDone:
    """`times`: for each candidate, seconds per call in each round; `throttled` and `condition`: see place.Place."""

    times: tuple[tuple[float, ...], ...]
    throttled: str = ""
    condition: str = ""


@dataclass(frozen=True)
class Waiting:
    """Before the first answer, now and then while others measure on the board. `standing`: who does, and how many turns
    away ours is."""

    standing: Standing


@dataclass(frozen=True)
class Speed:
    """Before an answer, now and then: seconds per call of the preflight kernel."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """In the place of any answer, and the last one: the device is out of reach (see DeviceLost), or, with `turn_over`,
    others' turn (see TurnOver)."""

    message: str
    running: bool
    turn_over: bool = False
