"""Tells what it takes to convert values between bytes and float32 on a CPU. Start at `conversions_of`.

A conversion is a pass over memory: its seconds are a latency and a rate. They are fitted to the times of some sizes
that `measure_conversions` keeps in the database. Without those they are estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from templates.integers import INTEGERS
from tuner.devices import Device
from tuner.placement.kernel_timing import fitted_link
from tuner.placement.step_costs import Costs, conversion_of, last_trial
from tuning_db.store import Store

TYPES = (INTEGERS, "float32")
SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20)  # in values: from a small layer's result to a large image
# What a conversion takes where none was measured: seconds of a launch, and of a value with one thread. These were
# measured on an Intel Xeon with AVX-512 at 2.8 GHz.
_LATENCY, _VALUE = 8e-6, 0.5e-9


@dataclass(frozen=True)
class Conversions:
    """Tells the seconds of conversions on one device. `links` has the latency and the seconds of a value, by the type
    that values are converted to. `source` is "measured" or "estimated"."""

    links: Mapping[str, tuple[float, float]]
    source: str

    def seconds(self, values: int, to: str, *, in_pass: bool = False) -> float:
        """Return the seconds that it takes to convert as many values to a type, in a kernel of its own or in another
        pass over memory (`in_pass`)."""
        latency, rate = self.links[to]
        return (0.0 if in_pass else latency) + rate * values


def conversions_of(store: Store | None, device: Device) -> Conversions:
    """Return what is known of a device's conversions. Raises DatabaseError if the store cannot be read."""
    links = {} if store is None else {to: link for to in TYPES if (link := _fitted(store, device, to)) is not None}
    if len(links) == len(TYPES):
        return Conversions(links, "measured")
    return Conversions(dict.fromkeys(TYPES, (_LATENCY, _VALUE / device.threads)), "estimated")


def measure_conversions(costs: Costs) -> None:
    """Measure those conversions on the first device of `costs` that its database lacks. Raises DatabaseError."""
    for to in TYPES:
        for values in SIZES:
            costs.conversion(values, to, 0)


def _fitted(store: Store, device: Device, to: str) -> tuple[float, float] | None:
    found = [last_trial(store, conversion_of(values, to), device.key) for values in SIZES]
    seconds = [trial.seconds for trial in found if trial is not None and trial.ok]
    return fitted_link(SIZES, seconds) if len(seconds) == len(SIZES) else None
