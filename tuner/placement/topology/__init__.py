"""What a network can be spread over: devices, the memories they use, and the links between them. Start at
`model.Topology`; `reading.topology_of` reads a file or takes a profile's name."""

from __future__ import annotations

from tuner.placement.topology.model import DeviceSpec, Link, Memory, Topology
from tuner.placement.topology.reading import read_topology, topology_of

__all__ = ["DeviceSpec", "Link", "Memory", "Topology", "read_topology", "topology_of"]
