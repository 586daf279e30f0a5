"""A topology describes what a network can be spread over: devices, the memories they use, and the links between them.

Start at `model.Topology`. `reading.topology_of` reads a file or takes a profile's name, `here.measured_topology`
measures the devices of this machine, `on_board.measured_on_board` those of a board. `writing.as_toml` writes a file.
"""

from __future__ import annotations

from tuner.studies.topology.model import DeviceSpec, Link, Memory, Topology
from tuner.studies.topology.reading import read_topology, topology_of
from tuner.studies.topology.writing import as_toml

__all__ = ["DeviceSpec", "Link", "Memory", "Topology", "as_toml", "read_topology", "topology_of"]
