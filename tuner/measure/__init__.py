"""Measuring: candidates in, trials out. Start at `contract.Runner`; `LocalRunner` measures on this machine,
`fleet.BoardRunner` on boards; `open_runner` knows which.

Everything that a candidate can do wrong happens in child processes: `builder` compiles, `executor` runs. The tuner's
side of them is `pool` and `laboratory`; both get their workers from `processes`. `ray_builders` has other machines
build.
"""

from collections.abc import Callable

from board_agent.timing import Repetition
from tuner.devices import Device, is_board
from tuner.measure.boards.runner import BoardRunner
from tuner.measure.codegen.toolchain import check_toolchain
from tuner.measure.local import LocalRunner
from tuner.measure.ray.builders import check_ray
from tuner.measure.runner import Candidate, MeasureOptions, Runner

__all__ = [
    "BoardRunner",
    "Candidate",
    "LocalRunner",
    "MeasureOptions",
    "Repetition",
    "Runner",
    "check_ray",
    "check_toolchain",
    "open_runner",
]


def open_runner(
    device: Device, options: MeasureOptions | None = None, notice: Callable[[str], object] = lambda _: None
) -> LocalRunner:
    """What measures on a device; `notice`: see LocalRunner. Raises BadInput, with what to do, where measuring cannot
    work."""
    return (BoardRunner if is_board(device.name) else LocalRunner)(device, options, notice)
