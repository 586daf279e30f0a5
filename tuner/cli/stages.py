"""`tune build --stages auto` runs operators at the same time, or merges them, where that is faster on the device.

Start at `Stager`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.common import Output, integers, seconds_of
from tuner.errors import BadInput, last_line

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import Placed
    from tuner.stages import StageOptions
    from tuner.stages.plan import StagePlan
    from tuning_db.store import Store


class Stages(StrEnum):
    """The values of --stages, which say whether a network is built in stages."""

    AUTO = "auto"
    OFF = "off"


StagesOption = Annotated[
    Stages,
    typer.Option(
        "--stages",
        help="auto: run operators at the same time, or convolutions of one input as one, where that measures faster "
        "(OpenCL, CUDA, a CPU with several threads); measures what the database lacks.",
    ),
]
StageMinutesOption = Annotated[
    float, typer.Option("--stage-minutes", help="Search for stages for this long; again, it goes on from there.")
]
StageLimitsOption = Annotated[
    str,
    typer.Option(
        "--stage-limits",
        metavar="GROUPS,OPERATORS",
        help="At most so many groups in a stage and operators in a group (default: any number, if that is feasible).",
    ),
]


def options_asked(minutes: float, limits: str, exact: bool) -> StageOptions:
    """Return the options of the search for stages. Raises BadInput if an argument cannot be used."""
    from tuner.stages import Limits, Options, StageOptions

    seconds = seconds_of(minutes, "--stage-minutes")
    assert seconds is not None
    if not limits:
        return StageOptions(seconds, exact=exact)
    groups, operators = integers(limits, "--stage-limits", [2])
    if min(groups, operators) < 1:
        raise BadInput(f"--stage-limits {limits}: give numbers from 1 on")
    return StageOptions(seconds, Options(Limits(groups, operators)), exact)


@dataclass
class Stager:
    """A callable that puts a network in stages and prints the outcome. `result` is the outcome for --json."""

    device: Device
    store: Store
    options: StageOptions
    out: Output
    result: dict[str, Any] | None = None

    def __call__(self, placed: Placed) -> Placed:
        """Return the faster of the network in stages and the network that runs one kernel after the other.

        If the network cannot be put in stages, print one line with the reason and return it as it is.
        """
        from tuner.stages.plan import plan_stages

        try:
            plan = plan_stages(placed, self.device, self.store, self.options)
        except (BadInput, RuntimeError, MemoryError) as error:
            line = last_line(error)
            self.out.remark(f"no stages: {line}; the kernels run one after the other")
            self.result = {"error": line}
            return placed
        self._show(plan)
        return plan.placed

    def _show(self, plan: StagePlan) -> None:
        schedule = plan.schedule or ()
        merged = sum(stage.merged for stage in schedule)
        wide = sum(len(stage.groups) > 1 for stage in schedule) - merged
        alone, together = plan.sequential_seconds * 1e3, plan.seconds * 1e3
        graph = " as one CUDA graph" if plan.placed.captured else ""
        if plan.schedule is None and graph:
            self.out.show(f"no stages: all kernels{graph} {together:.2f} ms, one after the other {alone:.2f} ms")
        elif plan.schedule is None:
            self.out.show(f"no stages: one kernel after the other ({alone:.2f} ms) is as fast as any found")
        else:
            times = f"{together:.2f} ms, one kernel after the other {alone:.2f} ms"
            self.out.show(f"{len(schedule)} stages{graph}, {wide} of them of several groups, {merged} merged: {times}")
        for line in plan.cuts:
            self.out.remark(f"stages: {line}")
        if not plan.finished:
            self.out.remark("stages: the search ran out of time; the same command goes on (--stage-minutes)")
        self.result = {
            "stages": [stage.text() for stage in schedule],
            "captured": plan.placed.captured,
            "seconds": plan.seconds,
            "sequential_seconds": plan.sequential_seconds,
            "finished": plan.finished,
            "measured": plan.measured,
            "cuts": list(plan.cuts),
        }
