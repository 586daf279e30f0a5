"""Choose kernels whose weights fit into a limit, at the least cost in time. Start at `within`.

Templates lay weights out in ways of their own, and some transform them: Winograd's are 1.8 to 4 times as large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
from tvm.ir import Var

from templates.template import anchor_template, search_space
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph.layout.choice import Choice, is_current
from tuning_db.record import Trial, Workload
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


def within(
    most_bytes: int,
    steps: Sequence[Weighted],
    chosen: Mapping[Var, Choice],
    *,
    device: Device,
    store: Store | None = None,
    exact: bool = False,
) -> dict[Var, Choice]:
    """Return the choices with some replaced, so that the weights of all steps take at most `most_bytes`. Of each
    workload's templates the best measured config is considered, or a first config. Whatever costs least time for a byte
    is replaced first. `exact` leaves out templates that round differently (Winograd).

    Raises BadInput if the weights do not fit in any case.
    """
    by_workload: dict[Workload, list[Weighted]] = {}
    for step in steps:
        if chosen[step.out].config is not None:
            by_workload.setdefault(step.workload, []).append(step)
    now = {w: _option(chosen[alike[0].out], alike, device) for w, alike in by_workload.items()}
    others = {
        w: [_option(choice, alike, device) for choice in _choices(w, device, store, exact)]
        for w, alike in by_workload.items()
    }
    total = sum(option.size for option in now.values())
    while total > most_bytes:
        swaps = [(_cost(now[w], option), w, option) for w in now for option in others[w] if option.size < now[w].size]
        if not swaps:
            raise BadInput(f"the weights take {total / 2**20:.1f} MiB at least, above the limit: allow more")
        _, workload, option = min(swaps, key=lambda swap: swap[0])
        total += option.size - now[workload].size
        now[workload] = option
    replaced = {step.out: now[w].choice for w, alike in by_workload.items() for step in alike}
    return {**chosen, **replaced}


def _cost(old: _Option, new: _Option) -> tuple[bool, float]:
    """Return a sort key that puts first what costs least time for a byte. Unknown times come last, by their bytes."""
    saved = old.size - new.size
    if new.seconds == inf or old.seconds == inf:
        return True, -float(saved)
    return False, (new.seconds - old.seconds) / saved


def _option(choice: Choice, alike: Sequence[Weighted], device: Device) -> _Option:
    assert choice.config is not None
    template = anchor_template(choice.config.template)
    weights = {id(step.weight): step.weight for step in alike}.values()
    packed = (template.pack_weight(alike[0].workload, device.target, choice.config, weight) for weight in weights)
    seconds = inf if choice.seconds is None else choice.seconds * len(alike)
    return _Option(choice, sum(array.nbytes for array in packed), seconds)


def _choices(workload: Workload, device: Device, store: Store | None, exact: bool) -> Iterable[Choice]:
    """Yield the best measured config of every template, or its first config where none was measured."""
    space = search_space(workload, device.target, exact=exact)
    for part in () if space is None else space.spaces:

        def usable(trial: Trial, name: str = part.template) -> bool:
            return trial.config.template == name and space is not None and is_current(trial, space)

        trial = None if store is None else store.best(workload, device.key, usable=usable)
        seeds = part.seed_configs()
        if trial is not None:
            yield Choice(trial.config, "device", trial.seconds, trial.error)
        elif seeds:
            yield Choice(seeds[0], "default")
