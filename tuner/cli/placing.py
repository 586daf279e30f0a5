"""`tune build --placement`: which way decides the device of each step, and what the simulator says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.common import Output
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.placement.topology import Topology
    from tuner.placement.ways import Placing


class Placement(StrEnum):
    """How the device of each step is chosen; all but the fallback are `tuner.placement.ways.WAYS`."""

    FALLBACK = "fallback"
    EXACT = "exact"
    MCMC = "mcmc"
    LEARNED = "learned"


PlacementOption = Annotated[
    Placement,
    typer.Option(
        "--placement",
        help="Which device computes a step. fallback: the GPU what it can; by the database's times: exact: least sum, "
        "mcmc: search in a simulator, learned: reinforcement (extra rl).",
    ),
]
TopologyOption = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        metavar="FILE.toml",
        help="The devices' links, of `tune devices --topology` (default: measured now); for --placement.",
    ),
]
PlacementSecondsOption = Annotated[
    float, typer.Option("--placement-seconds", help="How long --placement mcmc and learned may search.")
]


@dataclass(frozen=True)
class Placer:
    """Places networks in a `way`; `topology`: of a file, None: to be measured."""

    way: Placement
    topology: Topology | None
    seconds: float

    def place(
        self, graph: FusedGraph, devices: Sequence[Device], unwanted: Sequence[str], db: str, out: Output
    ) -> Placing:
        """On a GPU and the CPU, and one line that says what the simulator expects. Raises BadInput, DatabaseError."""
        from tuner.placement.topology.here import measured_topology
        from tuner.placement.ways import check_known, place
        from tuning_db.store import open_db

        if len(devices) < 2:
            raise BadInput(f"--placement {self.way}: between which devices? Name a GPU and the CPU: opencl:0,cpu")
        with open_db(db, create=False, read_only=True) as store:
            check_known(store, devices, graph.dtype)
            if self.topology is None:
                topology, _ = measured_topology(graph.model.name, devices, out.remark)
            else:
                topology = self.topology.among([device.name for device in devices])
            found = place(self.way, graph, devices, topology, store, unwanted, self.seconds)
        out.show(found.text())
        return found


def placer_asked(way: Placement, topology: Path | None, seconds: float, plan: Path | None) -> Placer | None:
    """None: the fallback. Raises BadInput, before anything costs time."""
    if way is Placement.FALLBACK:
        if topology is not None:
            raise BadInput(f"--topology {topology}: a fallback asks for no links: give --placement exact or mcmc, too")
        return None
    if plan is not None:
        raise BadInput("--plan says which device computes what: leave --placement away")
    if not 0 < seconds < float("inf"):
        raise BadInput(f"--placement-seconds must be a positive number, not {seconds:g}")
    if way is Placement.LEARNED:
        import tuner.placement.learned  # noqa: F401  # says so where torch is missing
    from tuner.placement.topology import read_topology

    # Under the file's name, which errors tell.
    given = None if topology is None else replace(read_topology(topology), name=str(topology))
    return Placer(way, given, seconds)


def placing_json(found: Placing) -> dict[str, Any]:
    """What --json says of it; a device that cannot compute the network alone takes null seconds."""
    simple = {name: None if s == float("inf") else s for name, s in found.simple.items()}
    return {**asdict(found), "simple": simple, "seconds": found.seconds}
