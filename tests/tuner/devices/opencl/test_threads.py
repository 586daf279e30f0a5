"""A driver that starts a worker per core (PoCL): each has its own, of those that the process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tuner.devices.opencl.conftest import LOADER
from tests.tuner.devices.opencl.support import Child
from tuner.devices import opencl, usable_cpus

TASKS = Path("/proc/self/task")


def _cores_of_workers(cores: list[int]) -> tuple[int, list[list[int]]]:
    """Compute units of the process's only device, and the cores of every thread that its driver started."""
    os.sched_setaffinity(0, cores)
    before = {task.name for task in TASKS.iterdir()}
    (info,) = opencl.devices()
    started = {task.name for task in TASKS.iterdir()} - before
    return info.compute_units, sorted(sorted(os.sched_getaffinity(int(task))) for task in started)


@pytest.mark.parametrize("alone", [False, True])
def test_each_worker_has_a_core_that_the_process_may_use(alone: bool) -> None:
    cores = sorted(usable_cpus())[-1:] if alone else sorted(usable_cpus())
    found = Child(EDGETUNE_OPENCL=LOADER)
    try:
        units, workers = found(_cores_of_workers, cores)
    except ValueError:
        pytest.skip("the system's loader has no driver, or several devices")
    finally:
        found.close()
    if not workers:
        pytest.skip("the driver starts its threads later")
    if len(workers) == units == len(cores):
        assert workers == [[core] for core in cores]
    else:
        assert all(set(allowed) <= set(cores) for allowed in workers)
