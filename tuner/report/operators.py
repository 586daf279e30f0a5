"""Records where a built module's time goes. Start at `Profile`.

It has one `Call` for each kernel call, in execution order, and the peak of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from templates.workloads import flop_of
from tuning_db.record import Config, Workload

PEAK_METHOD = "fastest of several runs of a kernel of fused multiply-adds in registers, same threads, same process"


@dataclass(frozen=True)
class Call:
    """A kernel call of an inference, which took `seconds`.

    `flop` counts the operations of the direct algorithm, whatever the kernel does, so a Winograd kernel may be above
    the peak. It is None if the operations are not counted, as for a call that is no anchor.
    """

    name: str
    function: str
    seconds: float
    workload: Workload | None
    config: Config | None

    @property
    def flop(self) -> float | None:
        return None if self.workload is None else flop_of(self.workload)

    @property
    def flops(self) -> float | None:
        """Return the operations a second, or None if the operations are not counted."""
        return None if self.flop is None else self.flop / self.seconds


@dataclass(frozen=True)
class Profile:
    """The calls of an inference, and the peak that they are compared with.

    `peak_flops` is in float32 operations a second, and was measured (see PEAK_METHOD).
    """

    calls: tuple[Call, ...]
    peak_flops: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Make a profile from what tuner.report.peers.ours.Ours.profile returns."""
        calls = tuple(
            Call(
                call["name"],
                call["function"],
                call["seconds"],
                None if call["workload"] is None else Workload.from_dict(call["workload"]),
                None if call["config"] is None else Config.from_dict(call["config"]),
            )
            for call in data["calls"]
        )
        return cls(calls, data["peak_flops"])

    @property
    def seconds(self) -> float:
        """Return the seconds of all calls together. An inference also takes the time between the calls."""
        return sum(call.seconds for call in self.calls)

    def as_dict(self) -> dict[str, Any]:
        return {
            "peak_gflops": self.peak_flops / 1e9,
            "peak_method": PEAK_METHOD,
            "calls": [
                {
                    "name": call.name,
                    "function": call.function,
                    "seconds": call.seconds,
                    "workload": None if call.workload is None else call.workload.as_dict(),
                    "template": None if call.config is None else call.config.template,
                    "gflops": None if call.flops is None else call.flops / 1e9,
                    "share_of_peak": None if call.flops is None else call.flops / self.peak_flops,
                }
                for call in self.calls
            ],
        }
