"""Runs one contender of a comparison in a process of its own: `python -m tuner.report.contender SPEC`.

The process opens its model, runs it once, keeps the outputs, warms up, and then times a block of runs for each line
that it reads. The other side is tuner.report.bench, which stops this process while another one is being timed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from tuner.alignment import aligned
from tuner.arrays import write_arrays

WARM_SECONDS = 0.5  # before the first block
REWARM_SECONDS = 0.05  # before every block: other contenders have changed the caches and the clock
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Spec:
    """A description of what the process runs.

    `peer` is the peer's name, and `source` the model or module that it opens. `cpus` are the logical CPUs that the
    process may use. `inputs` and `outputs` are .npz files.
    """

    peer: str
    source: str
    threads: int
    cpus: tuple[int, ...]
    inputs: str
    outputs: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main(argument: str) -> None:
    """Open a peer and time it whenever the parent process asks. `argument` is a `Spec` as JSON."""
    spec = Spec(**json.loads(argument))
    replies = isolate(spec.cpus)

    from tuner.report.peers import peer_named
    from tuner.report.peers.ours import Ours

    peer = peer_named(spec.peer)
    with np.load(spec.inputs) as archive:
        inputs = {name: aligned(archive[name]) for name in archive.files}  # which no contender has to copy then
    infer = peer.open(Path(spec.source), spec.threads, {name: array.shape for name, array in inputs.items()})
    write_arrays(Path(spec.outputs), infer(inputs))
    profile = partial(peer.profile, inputs, spec.threads) if isinstance(peer, Ours) else None
    serve(_timed(lambda: infer(inputs)), peer.version(), replies, profile)


def serve(run: Callable[[], float], version: str, replies: IO[str], profile: Callable[[], Any] | None = None) -> None:
    """Warm up, reply with `version`, then answer requests: time a block of runs, or profile.

    `run` makes one run and returns its seconds. They may be a kernel's alone, which are less than the run takes if the
    run waits for the host. `profile` returns what JSON can hold. Without it, a request for a profile gets no reply.
    """
    _block(run, WARM_SECONDS)
    _reply(replies, {"version": version})
    for line in sys.stdin:
        request = json.loads(line)
        if "block" in request:
            _block(run, min(REWARM_SECONDS, request["block"]))
            _reply(replies, {"times": _block(run, request["block"]), "peak_bytes": peak_bytes()})
        elif profile is not None:
            _reply(replies, profile())


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the most memory that this process has had at one time since it began to run its program: libraries, code
    and data. `getrusage` would count the memory of the process that it was forked from, too."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) << 10


def isolate(cpus: Sequence[int]) -> IO[str]:
    """Pin this process to `cpus`, let it end with its parent, and return the channel for replies.

    Call it before any library counts the cores or starts a thread.
    """
    _die_with_parent()
    os.sched_setaffinity(0, cpus)
    return _claim_standard_output()


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return run


def _block(run: Callable[[], float], seconds: float) -> list[float]:
    end = time.perf_counter() + seconds
    times = [run()]
    while time.perf_counter() < end:
        times.append(run())
    return times


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent. A stopped process would outlive a killed parent for ever."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _claim_standard_output() -> IO[str]:
    """Return the channel for replies. From then on, whatever the libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def _reply(replies: IO[str], value: object) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


if __name__ == "__main__":
    main(sys.argv[1])
