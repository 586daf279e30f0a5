"""Where a built module's time goes: `Profile`, one `Call` a kernel in execution order, and the peak of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from templates.workloads import flop_of
from tuning_db.record import Config, Workload

PEAK_METHOD = "fastest of several runs of a kernel of fused multiply-adds in registers, same threads, same process"


@dataclass(frozen=True)
class Call:
    """One kernel call of an inference. `flop` is of the direct algorithm, whatever the kernel does (None: not an
    anchor), so a Winograd kernel may be above the peak."""

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
        """Operations a second."""
        return None if self.flop is None else self.flop / self.seconds


@dataclass(frozen=True)
class Profile:
    """`peak_flops`: float32 operations a second, measured (see PEAK_METHOD)."""

    calls: tuple[Call, ...]
    peak_flops: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """From what tuner.report.peers.ours.Ours.profile gives."""
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
        """Of all calls; an inference also takes what lies between them."""
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
