"""Names the baselines. Start at `strategy_of`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tuner.errors import BadInput
from tuner.studies.baselines.additive import additive
from tuner.studies.baselines.expert import expert, expert_placement
from tuner.studies.baselines.metis import partition
from tuner.studies.baselines.whole import data_parallel, fall_back, single
from tuner.studies.networks import Network
from tuner.studies.soap import Strategy
from tuner.studies.topology import Topology

BASELINES: dict[str, Callable[[Network, Topology], Strategy]] = {
    "single": single,
    "cpu": partial(single, kind="cpu"),
    "gpu": partial(single, kind="gpu"),
    "fallback": fall_back,
    "data_parallel": data_parallel,
    "expert": expert,
    "expert_placement": expert_placement,
    "additive": additive,
    "metis": partition,
    "metis_all": partial(partition, every=True),
}


def strategy_of(name: str, network: Network, topology: Topology) -> Strategy:
    """Return a baseline's strategy by the baseline's name. Raises BadInput for an unknown name, and where the baseline
    cannot be computed."""
    if name not in BASELINES:
        raise BadInput(f"unknown placement {name!r}: give one of {', '.join(BASELINES)}")
    return BASELINES[name](network, topology)
