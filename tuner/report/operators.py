"""Records where a built module's time goes. Start at `Profile`.

It has one `Call` for each kernel call, in execution order, and the peak of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from templates.workloads import flop_of
from tuner.precision import precision_of
from tuning_db.record import Config, Workload

PEAK_METHOD = (
    "for each precision the fastest of several runs of a kernel of multiply-adds in registers, by the instruction that "
    "kernels have for it, same threads, same process"
)


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

    @property
    def precision(self) -> str | None:
        """Return what the call multiplies, such as "int8", or None if that is not known."""
        return None if self.workload is None else precision_of(self.workload.dtype)


@dataclass(frozen=True)
class Profile:
    """The calls of an inference, and the peaks that they are compared with.

    `peaks` are in operations a second, by precision, and were measured (see PEAK_METHOD). There is one of float32, and
    one of each other precision that the calls have and the device has an instruction for.
    """

    calls: tuple[Call, ...]
    peaks: Mapping[str, float]

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
        return cls(calls, data["peaks"])

    @property
    def seconds(self) -> float:
        """Return the seconds of all calls together. An inference also takes the time between the calls."""
        return sum(call.seconds for call in self.calls)

    def share(self, call: Call) -> float | None:
        """Return a call's share of the peak of its own precision, or None if the operations are not counted or there is
        no such peak."""
        peak = self.peaks.get(call.precision or "")
        return None if call.flops is None or peak is None else call.flops / peak

    def as_dict(self) -> dict[str, Any]:
        return {
            "peak_gflops": self.peaks["float32"] / 1e9,
            "peaks_gflops": {precision: peak / 1e9 for precision, peak in self.peaks.items()},
            "peak_method": PEAK_METHOD,
            "calls": [
                {
                    "name": call.name,
                    "function": call.function,
                    "seconds": call.seconds,
                    "workload": None if call.workload is None else call.workload.as_dict(),
                    "template": None if call.config is None else call.config.template,
                    "gflops": None if call.flops is None else call.flops / 1e9,
                    "precision": call.precision,
                    "share_of_peak": self.share(call),
                }
                for call in self.calls
            ],
        }
