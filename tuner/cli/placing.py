"""Implements `tune build --placement`. Start at `placer_asked`, which checks the options, and at `Placer`.

A search method, the fallback, or a file decides the device of each step. For the search methods the command prints the
seconds that the simulator predicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.common import Output, check_file, check_parent_writable
from tuner.cli.completion import one_of
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.graph.fusion.split import Split
    from tuner.graph.layout.choice import Planned
    from tuner.studies.soap import Strategy
    from tuner.studies.strategies import PlacementResult
    from tuner.studies.topology import Topology

    Measure = Callable[[str, Sequence[Device], Callable[[str], None]], Topology]


class Placement(StrEnum):
    """The search methods that choose each step's device (`tuner.studies.strategies.WAYS`), and the fallback."""

    FALLBACK = "fallback"
    EXACT = "exact"
    MCMC = "mcmc"
    LEARNED = "learned"


class Reward(StrEnum):
    """The sources of the seconds that learned placements learn from."""

    SIMULATED = "simulated"
    MEASURED = "measured"


def _asked(text: str) -> str:
    if text not in list(Placement) and not text.endswith(".json"):
        known = ", ".join(repr(str(way)) for way in Placement)
        raise typer.BadParameter(f"{text!r} is not one of {known}, nor a FILE.json of --write-placement.")
    return text


PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="WAY|FILE.json",
        callback=_asked,
        autocompletion=one_of([str(way) for way in Placement]),
        help="Which device computes a step. fallback: the GPU what it can; by the database's times: exact: least sum, "
        "mcmc: search in a simulator, steps in parts, learned: reinforcement (extra rl). FILE.json: as it says.",
    ),
]
WritePlacementOption = Annotated[
    Path | None,
    typer.Option(
        "--write-placement",
        metavar="FILE.json",
        help="Also write where each step is, to be changed and given to --placement.",
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
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--placement-trace",
        metavar="FILE.json",
        help="Also write the simulated timeline of what is built, for chrome://tracing or Perfetto.",
    ),
]
PlacementSecondsOption = Annotated[
    float, typer.Option("--placement-seconds", help="How long --placement mcmc and learned may search.")
]
PlacementRewardOption = Annotated[
    Reward,
    typer.Option(
        "--placement-reward",
        help="What --placement learned learns from: simulated seconds, or those of every placement, built and run.",
    ),
]


@dataclass(frozen=True)
class PlacedGraph:
    """A network whose steps have devices, ready to be built.

    - `split` is the network with steps divided into parts, and the device of each of its steps.
    - `strategy` says the same for the network's own steps.
    - `result` is what --json prints of it, None for the fallback.
    """

    split: Split
    strategy: Strategy
    result: dict[str, Any] | None


@dataclass(frozen=True)
class Placer:
    """An object that decides the device of each step of a network.

    - `way` is the fallback, a search method, or the name of a placement file.
    - `topology` was read from a file; None means that it is measured.
    - `seconds` is the time that a search may take.
    - `written` is the file that the placement is written to, and `trace` the file of its simulated timeline. None
      writes no file.
    - `reward` is what learned placements learn from.
    - `measure` measures the topology of devices, with the name that it is to have and what is told of progress. None
      measures them here.
    """

    way: str
    topology: Topology | None
    seconds: float
    written: Path | None = None
    reward: Reward = Reward.SIMULATED
    trace: Path | None = None
    measure: Measure | None = None

    def place(
        self, graph: FusedGraph, devices: Sequence[Device], unwanted: Sequence[str], db: str, out: Output
    ) -> PlacedGraph:
        """Place a network on a GPU and the CPU, and print one line about the result, such as the simulated seconds.

        `unwanted` has the operators that the CPU computes in any case. Raises BadInput for fewer than two devices and
        for a placement that cannot be made, DatabaseError if the database `db` cannot be read.
        """
        if len(devices) < 2:
            raise BadInput(f"--placement {self.way}: between which devices? Name a GPU and the CPU: opencl:0,cpu")
        if self.way == Placement.FALLBACK:
            found = _fallen_back(graph, devices, unwanted)
        elif self.way.endswith(".json"):
            found = _said(Path(self.way), graph, devices, unwanted=unwanted, out=out)
        else:
            found = self._searched(graph, devices, unwanted, db=db, out=out)
        if self.written is not None:
            from tuner.studies.parts import write_strategy_of

            write_strategy_of(self.written, graph, devices, found.strategy)
            out.show(f"wrote {self.written}: change it, or build it with --placement {self.written}")
        return found

    def _searched(
        self, graph: FusedGraph, devices: Sequence[Device], unwanted: Sequence[str], *, db: str, out: Output
    ) -> PlacedGraph:
        from tuner.studies.runs import Runs
        from tuner.studies.simulator import chrome_trace
        from tuner.studies.strategies import PlaceOptions, check_known, place
        from tuning_db.store import open_db

        with open_db(db, create=False, read_only=True) as store:
            check_known(store, devices, graph.dtype)
            if self.topology is None:
                topology = (self.measure or _measured_here)(graph.model.name, devices, out.remark)
            else:
                topology = self.topology.among([device.name for device in devices])
            runs = Runs(graph, devices, store) if self.reward is Reward.MEASURED else None
            options = PlaceOptions(unwanted, self.seconds, reward=runs)
            found = place(self.way, graph, devices, topology=topology, store=store, options=options)
        out.show(found.text())
        if self.trace is not None:
            self.trace.write_text(json.dumps(chrome_trace(found.timeline())), encoding="utf-8")
            out.show(f"wrote {self.trace}: the simulated timeline")
        return PlacedGraph(found.split, found.strategy, placing_json(found))


def _measured_here(name: str, devices: Sequence[Device], tell: Callable[[str], None]) -> Topology:
    from tuner.studies.topology.here import measured_topology

    return measured_topology(name, devices, tell)[0]


def _fallen_back(graph: FusedGraph, devices: Sequence[Device], unwanted: Sequence[str]) -> PlacedGraph:
    from tuner.placement.fallback import CPU, GPU, fall_back
    from tuner.studies.parts import built, whole_strategy

    placement = fall_back(graph, devices[GPU].target, unwanted, devices[GPU].memory_bytes)
    strategy = whole_strategy(graph, placement)
    return PlacedGraph(built(graph, strategy, CPU), strategy, None)


def _said(
    path: Path, graph: FusedGraph, devices: Sequence[Device], *, unwanted: Sequence[str], out: Output
) -> PlacedGraph:
    """Place a network as the file `path` says. Raises BadInput if the file cannot be used."""
    from tuner.studies.parts import built_of, read_strategy_of

    if unwanted:
        raise BadInput(f"--placement {path} says which device computes what: leave --fallback away")
    strategy = read_strategy_of(path, graph, devices)
    split = built_of(path, graph, devices, strategy)
    parts = _parts(split)
    out.show(f"{path}: {len(parts)} of {len(graph.steps)} steps are split")
    return PlacedGraph(split, strategy, {"way": str(path), "placement": list(split.placement), "parts": parts})


def refuse_beside_plan(way: str, written: Path | None) -> None:
    """Raise BadInput for options of placement, because a plan is given that says which device computes what."""
    if way != Placement.FALLBACK or written is not None:
        option = "--placement" if way != Placement.FALLBACK else "--write-placement"
        raise BadInput(f"--plan says which device computes what: leave {option} away")


def placer_asked(
    way: str,
    topology: Path | None,
    seconds: float,
    *,
    written: Path | None = None,
    reward: Reward = Reward.SIMULATED,
    trace: Path | None = None,
) -> Placer | None:
    """Return the placer that the options ask for, or None for a fallback that is not written to a file.

    Raises BadInput for options that do not go together, before anything takes time.
    """
    for file in (written, trace):
        if file is not None:
            check_parent_writable(file)
    if trace is not None and (way == Placement.FALLBACK or way.endswith(".json")):
        raise BadInput(f"--placement-trace {trace}: only --placement exact, mcmc and learned are simulated")
    if topology is not None and way == Placement.FALLBACK:
        raise BadInput(f"--topology {topology}: a fallback asks for no links: give --placement exact or mcmc, too")
    if topology is not None and way.endswith(".json"):
        raise BadInput(f"--topology {topology}: {way} says which device computes what, and asks for no links")
    if reward is Reward.MEASURED and way != Placement.LEARNED:
        raise BadInput("--placement-reward measured: only --placement learned learns from rewards")
    if way == Placement.FALLBACK and written is None:
        return None
    if way.endswith(".json"):
        check_file(Path(way), "a placement")
    if not 0 < seconds < float("inf"):
        raise BadInput(f"--placement-seconds must be a positive number, not {seconds:g}")
    if way == Placement.LEARNED:
        import tuner.studies.learned  # noqa: F401  # raises BadInput if torch is missing
    from tuner.studies.topology import read_topology

    # The topology gets the file's name, which error messages show.
    given = None if topology is None else replace(read_topology(topology), name=str(topology))
    return Placer(way, given, seconds, written, reward, trace)


def placing_json(found: PlacementResult) -> dict[str, Any]:
    """Return a placement as JSON. A device that cannot compute the network alone has null seconds."""
    simple = {name: None if s == float("inf") else s for name, s in found.simple.items()}
    return {
        "way": found.way,
        "taken": found.taken,
        "placement": list(found.placement),
        "found": found.found,
        "in_parts": found.in_parts,
        "simple": simple,
        "seconds": found.seconds,
        "parts": _parts(found.split),
    }


def _parts(split: Split) -> dict[str, list[str]]:
    """Return the nodes of the steps that are split, each with the nodes of its parts."""
    parts: dict[str, list[str]] = {}
    for step in split.graph.anchors:
        if step.out in split.whole:
            parts.setdefault(split.whole[step.out].node, []).append(step.node)
    return parts


def placed_by(
    graph: FusedGraph, devices: list[Device], unwanted: Sequence[str], placing: PlacedGraph | None
) -> tuple[list[Device], Planned]:
    """Return the devices that are used, and which of them computes each step: by `placing`, else by the fallback."""
    from tuner.graph.layout.choice import Planned
    from tuner.placement.fallback import fall_back

    placement: Sequence[int] = [0] * len(graph.steps)
    if placing is not None:
        placement = placing.split.placement
    elif len(devices) > 1:
        placement = fall_back(graph, devices[0].target, unwanted, devices[0].memory_bytes)
    used = sorted({*placement}) or [0]
    return [devices[d] for d in used], Planned([used.index(d) for d in placement])
