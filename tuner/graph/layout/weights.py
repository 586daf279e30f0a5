"""Choose kernels by what their weights take: the smallest (`smallest`), or those that fit into a limit at the least
cost in time (`within`).

Templates lay weights out in ways of their own, and some transform them: Winograd's are 1.8 to 4 times as large.
`tuner.module.by_memory` chooses from the same `Options` by all the memory of an inference.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
from tvm.ir import Var

from templates.template import AnchorTemplate, template_named
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph.layout.choice import Choice, choose_of_each
from tuning_db.record import Workload
from tuning_db.store import Store


class Weighted(Protocol):
    """A step that a template computes, such as an AnchorStep of a graph. Its weight is None if it has none."""

    @property
    def workload(self) -> Workload: ...
    @property
    def weight(self) -> np.ndarray | None: ...
    @property
    def out(self) -> Var: ...


@dataclass(frozen=True)
class Option:
    """Describes a kernel for all steps of one workload. `size` is what their weights take in bytes, and `seconds` what
    they take in an inference, or infinity where that is not known."""

    choice: Choice
    size: int
    seconds: float


@dataclass(frozen=True)
class Options:
    """Has, for each workload, its steps, the kernel that they have now, and what every template offers beside it."""

    alike: Mapping[Workload, Sequence[Weighted]]
    now: dict[Workload, Option]
    others: Mapping[Workload, Sequence[Option]]

    @classmethod
    def of(
        cls,
        steps: Sequence[Weighted],
        chosen: Mapping[Var, Choice],
        *,
        device: Device,
        store: Store | None,
        exact: bool,
    ) -> Options:
        by_workload: dict[Workload, list[Weighted]] = {}
        for step in steps:
            if step.out in chosen and chosen[step.out].config is not None:
                by_workload.setdefault(step.workload, []).append(step)
        now = {w: option_of(chosen[alike[0].out], alike, device) for w, alike in by_workload.items()}
        others = {
            w: [option_of(choice, alike, device) for choice in choose_of_each(w, device, store, exact)]
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
    options = Options.of(steps, chosen, device=device, store=store, exact=exact)
    for workload, now in options.now.items():
        options.now[workload] = min((now, *options.others[workload]), key=by_size)
    return options.choices(chosen)


def by_size(option: Option) -> tuple[int, bool, float]:
    """Return a sort key that puts the smallest weights first, and of these the fastest. Times that were measured on
    this device count before others."""
    return option.size, option.choice.source != "device", option.seconds


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
    options = Options.of(steps, chosen, device=device, store=store, exact=exact)
    least = reduce(options.now, options.others, most_bytes)
    if least > most_bytes:
        raise too_large(least)
    return options.choices(chosen)


def too_large(least: int) -> BadInput:
    """Return the error for weights that take `least` bytes at least, which is more than they may."""
    return BadInput(f"the weights take {least / 2**20:.1f} MiB at least, above the limit: allow more")


def reduce(
    now: MutableMapping[Workload, Option], others: Mapping[Workload, Sequence[Option]], most_bytes: float
) -> int:
    """Replace kernels of `now` by `others` with smaller weights until all of them take at most `most_bytes`, or until
    there are none. Whatever costs least time for a byte is replaced first. Return what the weights take then."""
    total = sum(option.size for option in now.values())
    while total > most_bytes:
        swaps = [(_cost(now[w], option), w, option) for w in now for option in others[w] if option.size < now[w].size]
        if not swaps:
            break
        _, workload, option = min(swaps, key=lambda swap: swap[0])
        total += option.size - now[workload].size
        now[workload] = option
    return total


def _cost(old: Option, new: Option) -> tuple[bool, float]:
    """Return a sort key that puts first what costs least time for a byte. Unknown times come last, by their bytes."""
    saved, more = old.size - new.size, seconds_more(old, new)
    return (True, -float(saved)) if more is None else (False, more / saved)


def seconds_more(old: Option, new: Option) -> float | None:
    """Return how many seconds more `new` takes in an inference than `old`, or None where that is not known. Times of
    two devices cannot be compared."""
    if new is old:
        return 0.0
    if new.seconds == inf or old.seconds == inf or new.choice.source != old.choice.source:
        return None
    return new.seconds - old.seconds


def option_of(choice: Choice, alike: Sequence[Weighted], device: Device) -> Option:
    """Return a kernel as an option for the steps `alike`, which have one workload."""
    assert choice.config is not None
    template = template_named(choice.config.template)
    weights = {id(step.weight): step.weight for step in alike if step.weight is not None}.values()
    packed = (
        template.pack_weight(alike[0].workload, device.target, choice.config, weight).nbytes
        for weight in weights
        if isinstance(template, AnchorTemplate)
    )
    seconds = inf if choice.seconds is None else choice.seconds * len(alike)
    return Option(choice, sum(packed), seconds)
