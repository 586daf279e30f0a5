"""Writes topologies as files that `reading.read_topology` reads. Start at `as_toml`."""

from __future__ import annotations

import math
from glob import escape
from typing import Any

import tomli_w

from tuner.studies.topology.model import DeviceSpec, Link, Topology


def as_toml(topology: Topology) -> str:
    """Return all of a topology as TOML; reading it returns an equal topology."""
    return tomli_w.dumps(
        {
            "name": topology.name,
            "memory": [{"name": memory.name, "bytes": float(memory.bytes)} for memory in topology.memories],
            "device": [_device(device) for device in topology.devices],
            "link": [_link(link) for link in topology.links],
        }
    )


def _device(device: DeviceSpec) -> dict[str, Any]:
    """Return a device as a table; what it does not have is left out."""
    optional = {"cores": device.cores, "lacks": sorted(device.lacks)}
    return {
        "name": device.name,
        "kind": device.kind,
        "flops": float(device.flops),
        "bandwidth": float(device.bandwidth),
        "memory": device.memory,
        "overhead": float(device.overhead),
        **{name: value for name, value in optional.items() if value},
    }


def _link(link: Link) -> dict[str, Any]:
    """Return a link as a table for one direction. Names are escaped, as a star in a name would match many devices."""
    return {
        "from": escape(link.source),
        "to": escape(link.target),
        "bandwidth": "shared" if math.isinf(link.bandwidth) else float(link.bandwidth),
        "latency": float(link.latency),
        "both": False,
        **({"bus": link.bus} if link.bus else {}),
    }
