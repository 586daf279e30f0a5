"""Choose kernels by what their weights take: the smallest (`smallest`), or those that fit into a limit at the least
cost in time (`within`).

Templates lay weights out in ways of their own, and some transform them: Winograd's are 1.8 to 4 times as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
from tvm.ir import Var

from templates.template import anchor_template
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph.layout.choice import Choice, choose_of_each
from tuning_db.record import Workload
from tuning_db.store import Store


class Weighted(Protocol):
    """A step that has a weight: an AnchorStep of a graph."""

    @property
    def workload(self) -> Workload: ...
    @property
    def weight(self) -> np.ndarray: ...
    @property
    def out(self) -> Var: ...


@dataclass(frozen=True)
class _Option:
    """Describes a kernel for all steps of one workload. `size` is what their weights take in bytes, and `seconds` what
    they take in an inference, or infinity where that is not known."""

    choice: Choice
    size: int
    seconds: float


@dataclass(frozen=True)
class _Options:
    """Has, for each workload, its steps, the kernel that they have now, and what every template offers beside it."""

    alike: Mapping[Workload, Sequence[Weighted]]
    now: dict[Workload, _Option]
    others: Mapping[Workload, Sequence[_Option]]

    @classmethod
    def of(
        cls,
        steps: Sequence[Weighted],
        chosen: Mapping[Var, Choice],
        *,
        device: Device,
        store: Store | None,
        exact: bool,
    ) -> _Options:
        by_workload: dict[Workload, list[Weighted]] = {}
        for step in steps:
            if step.out in chosen and chosen[step.out].config is not None:
                by_workload.setdefault(step.workload, []).append(step)
        now = {w: _option(chosen[alike[0].out], alike, device) for w, alike in by_workload.items()}
        others = {
            w: [_option(choice, alike, device) for choice in choose_of_each(w, device, store, exact)]
            for w, alike in by_workload.items()
        }
        return cls(by_workload, now, others)

    def choices(self, chosen: Mapping[Var, Choice]) -> dict[Var, Choice]:
        """Return the choices with those replaced that these are options for."""
        return {**chosen, **{step.out: self.now[w].choice for w, alike in self.alike.items() for step in alike}}


def smallest(
    steps: Sequence[Weighted],
    chosen: Mapping[Var, Choice],
    *,
    device: Device,
    store: Store | None = None,
    exact: bool = False,
) -> dict[Var, Choice]:
    """Return the choices with some replaced, so that the weights of all steps take as few bytes as possible. Of what
    each of a workload's templates offers (see `choose_of_each`), the fastest with the smallest weights is taken. Times
    that were measured on this device count before others. `exact` leaves out templates that round differently."""
    options = _Options.of(steps, chosen, device=device, store=store, exact=exact)
    for workload, now in options.now.items():
        options.now[workload] = min(
            (now, *options.others[workload]), key=lambda o: (o.size, o.choice.source != "device", o.seconds)
        )
    return options.choices(chosen)


def within(
    most_bytes: int,
    steps: Sequence[Weighted],
    chosen: Mapping[Var, Choice],
    *,
    device: Device,
    store: Store | None = None,
    exact: bool = False,
) -> dict[Var, Choice]:
    """Return the choices with some replaced, so that the weights of all steps take at most `most_bytes`. What each of a
    workload's templates offers is considered (see `choose_of_each`). Whatever costs least time for a byte is replaced
    first. `exact` leaves out templates that round differently (Winograd).

    Raises BadInput if the weights do not fit in any case.
    """
    options = _Options.of(steps, chosen, device=device, store=store, exact=exact)
    now, others = options.now, options.others
    total = sum(option.size for option in now.values())
    while total > most_bytes:
        swaps = [(_cost(now[w], option), w, option) for w in now for option in others[w] if option.size < now[w].size]
        if not swaps:
            raise BadInput(f"the weights take {total / 2**20:.1f} MiB at least, above the limit: allow more")
        _, workload, option = min(swaps, key=lambda swap: swap[0])
        total += option.size - now[workload].size
        now[workload] = option
    return options.choices(chosen)


def _cost(old: _Option, new: _Option) -> tuple[bool, float]:
    """Return a sort key that puts first what costs least time for a byte. Unknown times come last, by their bytes, and
    so do times of two devices, which cannot be compared."""
    saved = old.size - new.size
    if new.seconds == inf or old.seconds == inf or new.choice.source != old.choice.source:
        return True, -float(saved)
    return False, (new.seconds - old.seconds) / saved


def _option(choice: Choice, alike: Sequence[Weighted], device: Device) -> _Option:
    assert choice.config is not None
    template = anchor_template(choice.config.template)
    weights = {id(step.weight): step.weight for step in alike}.values()
    packed = (template.pack_weight(alike[0].workload, device.target, choice.config, weight) for weight in weights)
    seconds = inf if choice.seconds is None else choice.seconds * len(alike)
    return _Option(choice, sum(array.nbytes for array in packed), seconds)
