"""Provides costs of workloads on a device from the tuning database: its best times and, for other workloads, a roofline
that is fitted to them. Start at `DatabaseCosts`; `fitted` returns the roofline with its error.
"""

from __future__ import annotations

from collections.abc import Sequence

from templates.traffic import bytes_of
from templates.workloads import flop_of, kind_of
from tuner.placement.step_costs import Cost
from tuner.studies.simulator.costs import Work
from tuner.studies.simulator.fitting import FittedRoofline, Sample, fit_kinds
from tuner.studies.topology import DeviceSpec
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import Store


def work_of(workload: Workload) -> Work | None:
    """Return the flop and bytes of a workload, or None if its bytes are unknown. An operator without a flop count has 0
    flop."""
    moved = bytes_of(workload)
    return None if moved is None else Work(flop_of(workload) or 0.0, moved)


def samples_of(store: Store, key: DeviceKey, dtype: str = "float32") -> list[Sample]:
    """Return the best verified trial of each workload on a device, unless it was throttled. Only workloads of one dtype
    count, as other dtypes have other peaks. Raises DatabaseError if the store cannot be read."""
    found = []
    for workload in store.workloads(key):
        work = work_of(workload) if workload.dtype == dtype else None
        best = store.best(workload, key) if work else None
        if work is not None and best is not None and not best.throttled:
            found.append(Sample(kind_of(workload), work, best.seconds))
    return found


def fitted(store: Store, key: DeviceKey, device: DeviceSpec, dtype: str = "float32") -> FittedRoofline:
    """Fit a roofline, with its error, to the trials of a device of a topology. Raises BadInput where there are too few
    workloads, DatabaseError if the store cannot be read."""
    return fit_kinds(samples_of(store, key, dtype), device)


class DatabaseCosts:
    """Provides costs of workloads on devices, which are given by their indices in `keys` (the database) and `devices`
    (a topology). The rooflines are fitted to the trials that the database has when this is made.

    Raises BadInput as `fitted` does.
    """

    def __init__(
        self, store: Store, keys: Sequence[DeviceKey], devices: Sequence[DeviceSpec], dtype: str = "float32"
    ) -> None:
        self._store, self._keys = store, keys
        self.fits = [fitted(store, key, device, dtype) for key, device in zip(keys, devices, strict=True)]

    def cost(self, workload: Workload, device: int) -> Cost | None:
        """Return a workload's seconds and their source: "device" (the database's best) or "fitted" (the roofline). None
        means that neither a time nor the work of the workload is known."""
        best = self._store.best(workload, self._keys[device])
        if best is not None:
            return Cost(best.seconds, "device")
        work = work_of(workload)
        return None if work is None else Cost(self.fits[device].seconds(kind_of(workload), work), "fitted")
