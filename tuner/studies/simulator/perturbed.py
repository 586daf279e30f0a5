"""Estimates how far off simulated seconds may be. Strategies are simulated again and again, with costs that are as far
off as the modelled ones were from measurements. Start at `simulated_again`; `between` returns the bounds.

There are two readings of how far costs are off. Either every operator is off by itself (`together` is False), so that
much of the error cancels out. Or all operators of a kind on a device are off alike, which is the worst that the same
errors can do. Strategies are given, not searched for. One that was chosen because some costs are too low loses where
these are drawn higher.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tuner.errors import BadInput
from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.simulator.contention import contended
from tuner.studies.simulator.costs import CostModel, Phase, Work
from tuner.studies.soap import Strategy
from tuner.studies.topology import DeviceSpec, Topology

LOW, HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Slowed:
    """A cost model that multiplies the seconds on each device by a factor, by the devices' names."""

    cost: CostModel
    devices: Mapping[str, float]

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        return self.devices.get(device.name, 1.0) * self.cost.seconds(operator, phase, work, share, device)


@dataclass(frozen=True)
class Ratios:
    """Holds the ratios of measured to modelled seconds on a device.

    `kinds` holds those of each kind of operators (`fitting.left_out_ratios`); a kind that has none takes all of them
    together. `whole` holds ratios for all that the device computes. Raises BadInput where either is empty or not above
    0.
    """

    kinds: Mapping[str, tuple[float, ...]]
    whole: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for what, found in (("a kind of operators", self.pooled), ("a device", self.whole)):
            if not found or not min(found) > 0:
                raise BadInput(f"ratios of {what} must be there and above 0, not {list(found)}")

    @property
    def pooled(self) -> tuple[float, ...]:
        return tuple(r for ratios in self.kinds.values() for r in ratios)

    def of(self, kind: str) -> tuple[float, ...]:
        return self.kinds.get(kind) or self.pooled


@dataclass(frozen=True)
class Perturbation:
    """How costs are drawn anew, by the ratios of each device. A draw has one ratio for each device. It has another one
    for each operator on a device, or for each kind of operators if they are off `together`."""

    ratios: Mapping[str, Ratios]
    seed: int
    together: bool


class Case(NamedTuple):
    """Pairs a strategy with its network. Cases may have different networks on one topology, as a network with steps in
    parts is another network."""

    network: Network
    strategy: Strategy


def simulated_again(
    cases: Mapping[str, Case],
    topology: Topology,
    cost: CostModel,
    perturbation: Perturbation,
    *,
    draws: int,
    modules: Sequence[float] = (1.0,),
) -> dict[str, np.ndarray]:
    """Return the seconds of an inference of each case in every draw, as (draws,). Devices share their memory's rate.

    The perturbation of a draw is the same in all cases. Each case also has one of `modules`: measured / simulated
    seconds of built modules. The same seed gives the same result.

    Raises BadInput for a device without ratios.
    """
    ratios, seed = perturbation.ratios, perturbation.seed
    missing = [d.name for d in topology.devices if d.name not in ratios]
    if missing:
        raise BadInput(f"{topology.name}: no ratios of device {missing[0]!r}: there are some of {', '.join(ratios)}")
    found: dict[str, list[float]] = {name: [] for name in cases}
    for draw in range(draws):
        drawn = drawn_cost(cost, perturbation, draw)
        for name, (network, strategy) in cases.items():
            module = random.Random(f"{seed} {draw} module {name}").choice(modules)
            found[name].append(module * contended(network, topology, strategy, cost=drawn))
    return {name: np.array(seconds) for name, seconds in found.items()}


def drawn_cost(cost: CostModel, perturbation: Perturbation, draw: int) -> CostModel:
    """Return the costs of one of the draws of `simulated_again`, so that one can search under them as if they were
    measured."""
    return _Drawn(cost, perturbation.ratios, f"{perturbation.seed} {draw}", perturbation.together)


def between(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the 5th and the 95th percentile."""
    low, high = np.quantile(values, (LOW, HIGH))
    return float(low), float(high)


@dataclass(frozen=True)
class _Drawn:
    """The costs of one draw. A ratio depends only on its name and the seed, so the order of calls does not matter."""

    cost: CostModel
    ratios: Mapping[str, Ratios]
    seed: str
    together: bool
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        ratios = self.ratios[device.name]
        factor = self._ratio(ratios.whole, device.name)
        who = () if self.together else work
        factor *= self._ratio(ratios.of(operator.kind), device.name, operator.kind, *who)
        return factor * self.cost.seconds(operator, phase, work, share, device)

    def _ratio(self, ratios: tuple[float, ...], *name: object) -> float:
        if name not in self._known:
            self._known[name] = random.Random(f"{self.seed} {name}").choice(ratios)
        return self._known[name]
