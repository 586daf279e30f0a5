"""Measures candidates and returns trials. Start at `runner.Runner`. `LocalRunner` measures on this machine and
`BoardRunner` on boards; `open_runner` chooses between them.

Whatever a candidate may break happens in child processes: `workers.build_main` compiles, `workers.run_main` checks and
times. On the tuner's side `workers.build_pool` and `workers.run_client` talk to these processes, which `workers.worker`
starts. `ray.builders` lets other machines build. Both runners are made of `local.builder`, `local.measurer` and
`local.searchers`.
"""

from collections.abc import Callable

from board_agent.timing import Repetition
from tuner.devices import Device
from tuner.measure.boards.runner import BoardRunner
from tuner.measure.codegen.toolchain import check_toolchain
from tuner.measure.local.runner import LocalRunner
from tuner.measure.local.searching import SearchingRunner
from tuner.measure.ray.builders import check_ray
from tuner.measure.runner import Candidate, MeasureOptions, Runner

__all__ = [
    "BoardRunner",
    "Candidate",
    "LocalRunner",
    "MeasureOptions",
    "Repetition",
    "Runner",
    "SearchingRunner",
    "check_ray",
    "check_toolchain",
    "open_runner",
]


def open_runner(
    device: Device, options: MeasureOptions | None = None, notice: Callable[[str], object] = lambda _: None
) -> SearchingRunner:
    """Open the runner that measures on a device. `notice` is as in SearchingRunner. Raises BadInput, with what to do,
    where measuring cannot work."""
    return (BoardRunner if device.kind.is_remote else LocalRunner)(device, options, notice)
