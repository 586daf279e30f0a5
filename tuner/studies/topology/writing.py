"""Writes topologies as files that `reading.read_topology` reads. Start at `as_toml`."""

from __future__ import annotations

import json
import math
from glob import escape

from tuner.studies.topology.model import DeviceSpec, Link, Topology


def as_toml(topology: Topology) -> str:
    """Return all of a topology as TOML; reading it returns an equal topology."""
    tables = [f"name = {_text(topology.name)}\n"]
    for memory in topology.memories:
        tables.append(f"[[memory]]\nname = {_text(memory.name)}\nbytes = {_number(memory.bytes)}\n")
    tables += [_device(device) for device in topology.devices]
    tables += [_link(link) for link in topology.links]
    return "\n".join(tables)


def _device(device: DeviceSpec) -> str:
    lines = ["[[device]]", f"name = {_text(device.name)}", f"kind = {_text(device.kind)}"]
    lines += [f"flops = {_number(device.flops)}", f"bandwidth = {_number(device.bandwidth)}"]
    lines += [f"memory = {_text(device.memory)}", f"overhead = {_number(device.overhead)}"]
    if device.cores:
        lines.append(f"cores = {_text(device.cores)}")
    if device.lacks:
        lines.append(f"lacks = [{', '.join(map(_text, sorted(device.lacks)))}]")
    return "\n".join(lines) + "\n"


def _link(link: Link) -> str:
    """Return a link as a table for one direction. Names are escaped, as a star in a name would match many devices."""
    lines = ["[[link]]", f"from = {_text(escape(link.source))}", f"to = {_text(escape(link.target))}"]
    bandwidth = '"shared"' if math.isinf(link.bandwidth) else _number(link.bandwidth)
    lines += [f"bandwidth = {bandwidth}", f"latency = {_number(link.latency)}", "both = false"]
    if link.bus:
        lines.append(f"bus = {_text(link.bus)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return repr(float(value))  # TOML writes inf and exponents as Python does


def _text(value: str) -> str:
    """Return a TOML string: a JSON string in which one more character is escaped, as TOML demands."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
