"""A build worker compiles candidates to shared objects. `main` runs in a child process; `build` builds one
candidate."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.target import Target

import vision_ops
from board_agent.sandbox import limit_memory, resident_bytes
from templates.template import ScheduleError, template_named
from tuner.devices import kind_of, runtime_device
from tuner.measure.codegen.launches import build_launches
from tuner.measure.codegen.toolchain import ENTRY, build_shared, operand_types, operands_file, preflight_func
from tuner.measure.failures import describe, describe_with_place
from tuner.measure.messages import BuildDone, BuilderSettings, BuildJob, WarmJob
from tuner.measure.runner import Candidate
from tuning_db.record import Failure, FailureKind


def main(connection: Connection, settings: BuilderSettings) -> None:
    """Answer BuildJobs and WarmJobs until the connection closes (EOFError)."""
    assert vision_ops is not None  # imported for the templates and operators that it registers
    target = Target(settings.target)
    if settings.binaries is not None:
        kind_of(settings.device).keep_binaries_in(settings.binaries, settings.device)
    while True:
        job: BuildJob | WarmJob = connection.recv()
        limit_memory(settings.memory_bytes)
        connection.send(warm(job, settings) if isinstance(job, WarmJob) else build(job, target, settings))


def build(job: BuildJob, target: Target, settings: BuilderSettings) -> BuildDone:
    """Build one candidate. Whatever the template raises is the candidate's failure."""
    failure, kind = None, kind_of(settings.device)
    try:
        func = preflight_func(settings.threads, target) if job.candidate is None else scheduled(job.candidate, target)
        if settings.form == "launches":
            build_launches(func, target, Path(job.library))
        else:
            kind.compile_ahead(settings.device, build_shared(func, target, Path(job.library), settings.linker))
        if kind.compiles_when_run(settings.device):
            operands_file(Path(job.library)).write_text(json.dumps(operand_types(func)))
    except (ScheduleError, s_tir.ScheduleError) as error:
        failure = Failure(FailureKind.INVALID, describe(error))
    except BaseException as error:
        failure = Failure(FailureKind.COMPILE, describe_with_place(error, settings.memory_bytes))
    return BuildDone(failure, resident_bytes())


def warm(job: WarmJob, settings: BuilderSettings) -> BuildDone:
    """Run a built function once, on zeros."""
    failure = None
    try:
        place = runtime_device(settings.device)
        operands = json.loads(operands_file(Path(job.library)).read_text())
        arguments = [tvm.runtime.tensor(np.zeros(shape, dtype), place) for shape, dtype in operands]
        tvm.runtime.load_module(job.library)[ENTRY](*arguments)
        place.sync()
    except BaseException as error:
        failure = Failure(FailureKind.RUN, describe(error, settings.memory_bytes))
    return BuildDone(failure, resident_bytes())


def scheduled(candidate: Candidate, target: Target) -> tirx.PrimFunc:
    """Return the candidate's scheduled function. Raises ScheduleError if the config is not one of its
    template's space."""
    workload, config = candidate.workload, candidate.config
    try:
        template = template_named(config.template)
    except KeyError as error:
        raise ScheduleError(error.args[0]) from error
    space = template.space(workload, target)
    if space is None:
        raise ScheduleError(f"template {template.name} does not apply to this workload on this target")
    reason = space.why_invalid(config)
    if reason is not None:
        raise ScheduleError(reason)
    return template.prim_func(workload, target, config)
