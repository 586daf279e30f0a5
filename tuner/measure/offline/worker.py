"""A worker that checks and compiles candidates for a profile. `main` runs in a child process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tvm import s_tir
from tvm.target import Target

import vision_ops
from board_agent.sandbox import limit_memory, resident_bytes
from templates.gpu.checks import violations
from templates.gpu.limits import GpuLimits
from templates.gpu.lowered import lower
from templates.template import ScheduleError
from tuner.devices.profiles import profile_named
from tuner.errors import CompileError
from tuner.measure.failures import describe, describe_with_place
from tuner.measure.messages import BuildDone, BuildJob
from tuner.measure.offline.compilers import compilers_of
from tuner.measure.offline.contract import Compiler, Resources
from tuner.measure.offline.report import CandidateReport, KernelReport, Verdict, judge
from tuner.measure.runner import Candidate
from tuner.measure.workers.build_main import scheduled


@dataclass(frozen=True)
class OfflineSettings:
    """Settings that a worker is started with. `profile` is the profile's name. `memory_bytes` is what one candidate may
    allocate."""

    profile: str
    memory_bytes: int


def main(connection: Connection, settings: OfflineSettings) -> None:
    """Answer BuildJobs until the connection closes (EOFError). The file that a job names gets the pickled report."""
    assert vision_ops is not None  # imported for the templates and operators that it registers
    os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"  # keeps TVM itself from compiling CUDA where it could
    profile = profile_named(settings.profile)
    target, compilers = profile.target(), compilers_of(profile)
    while True:
        job: BuildJob = connection.recv()
        limit_memory(settings.memory_bytes)
        assert job.candidate is not None
        report = check(job.candidate, target, profile.limits, compilers)
        Path(job.library).write_bytes(pickle.dumps(report))
        connection.send(BuildDone(None, resident_bytes()))


def check(candidate: Candidate, target: Target, limits: GpuLimits, compilers: Sequence[Compiler]) -> CandidateReport:
    """Schedule, lower, look for what the device refuses, and only then compile. Whatever the template or TVM raises is
    the candidate's failure."""
    config = candidate.config
    try:
        lowered = lower(scheduled(candidate, target), target)
    except (ScheduleError, s_tir.ScheduleError) as error:
        return CandidateReport(config, Verdict.INVALID, describe(error))
    except Exception as error:
        return CandidateReport(config, Verdict.COMPILE, describe_with_place(error))
    kernels = tuple(KernelReport(kernel) for kernel in lowered.kernels)
    refused = violations(lowered, limits)
    if refused:
        return CandidateReport(config, Verdict.LIMIT, "; ".join(refused), kernels, lowered.workspace_bytes)
    taken: dict[str, Resources] = {}
    try:
        source = lowered.source()
        for compiler in compilers:
            taken.update(compiler.compile(source))
    except Exception as error:
        message = str(error) if isinstance(error, CompileError) else describe(error)
        return CandidateReport(config, Verdict.COMPILE, message, kernels, lowered.workspace_bytes)
    reports = [KernelReport(kernel, taken.get(kernel.name)) for kernel in lowered.kernels]
    return judge(config, reports, lowered.workspace_bytes)
