"""Reads topologies from files: TOML with [[device]], [[memory]] and [[link]]. Start at `topology_of`.

name = "a board"
[[memory]]
name = "ram"
bytes = 4e9
[[device]]
name = "gpu"
kind = "gpu"
flops = 236e9           # per second
bandwidth = 25.6e9      # bytes per second
memory = "ram"          # left out: the device has a memory of its own, without a limit
cores = "gpu"           # left out: cores of its own; devices on the same cores do not work at the same time
[[link]]
from = "gpu"            # names may have * and ?, which stand for all devices that they match
to = "cpu"
bandwidth = "shared"    # or bytes per second
latency = 20e-6         # seconds
both = true             # the default: the link is there in both directions
bus = "pcie"            # left out: the link shares no bus; a processor's name: that processor makes the copies
"""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tuner.errors import BadInput
from tuner.studies.topology.model import DeviceSpec, Link, Memory, Topology
from tuner.studies.topology.profiles import profile

_DEVICE = {
    "name": str,
    "kind": str,
    "flops": float,
    "bandwidth": float,
    "memory": str,
    "overhead": float,
    "lacks": list,
    "cores": str,
}
_MEMORY = {"name": str, "bytes": float}
_LINK = {"from": str, "to": str, "bandwidth": float, "latency": float, "bus": str, "both": bool}
_NEEDED = {"device": ("name", "kind", "flops", "bandwidth"), "memory": ("name", "bytes")}


def topology_of(text: str) -> Topology:
    """Return the topology of a file ("board.toml") or of a profile ("jetson-nano", "p100:16"). Raises BadInput for
    anything else."""
    if text.endswith(".toml"):
        return read_topology(Path(text))
    return profile(text)


def read_topology(path: Path) -> Topology:
    """Read a topology from a file. Raises BadInput, in one line with the file's name, for whatever cannot be used."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        give = "give a TOML file, as `tune devices --topology FILE.toml` writes it"
        raise BadInput(f"topology {path}: cannot be read ({why}): {give}") from error
    except ValueError as error:  # TOMLDecodeError, or an integer with more digits than Python reads
        raise BadInput(f"topology {path}: not TOML: {error}") from error
    where = str(path)
    _known_keys(where, "the file", data, {"name": str, "device": list, "memory": list, "link": list})
    devices = [_device(where, table) for table in _tables(where, data, "device")]
    memories = [Memory(**_checked(where, "memory", table, _MEMORY)) for table in _tables(where, data, "memory")]
    own = [Memory(d.memory) for d in devices if d.memory == d.name and d.name not in {m.name for m in memories}]
    links: dict[tuple[str, str], Link] = {}
    for table in _tables(where, data, "link"):
        for link in _links(where, table, [d.name for d in devices]):
            links[link.source, link.target] = link
    found = Topology(where, tuple(devices), (*memories, *own), tuple(links.values()))
    return replace(found, name=data["name"]) if "name" in data else found  # errors above name the file


def _tables(where: str, data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise BadInput(f"{where}: {name} must be tables: write [[{name}]]")
    return tables


def _device(where: str, table: dict[str, Any]) -> DeviceSpec:
    given = _checked(where, "device", table, _DEVICE)
    lacks = given.pop("lacks", [])
    if not all(isinstance(kind, str) for kind in lacks):
        raise BadInput(f"{where}: device {given['name']!r}: lacks must be names of operators")
    return DeviceSpec(**{"memory": given["name"], **given}, lacks=frozenset(lacks))


def _links(where: str, table: dict[str, Any], names: list[str]) -> Iterator[Link]:
    """Yield the links of one table, in both directions unless it says otherwise; a later table replaces those of an
    earlier one."""
    given = {**table, "bandwidth": math.inf} if table.get("bandwidth") == "shared" else table
    given = _checked(where, "link", given, _LINK)
    for end in ("from", "to", "bandwidth"):
        if end not in given:
            raise BadInput(f"{where}: a link from {given.get('from')!r} to {given.get('to')!r} has no {end!r}")
    ends = []
    for end in ("from", "to"):
        found = [name for name in names if fnmatchcase(name, given[end])]
        if not found:
            raise BadInput(
                f"{where}: link: unknown device {given[end]!r}: the devices are {', '.join(names) or 'none'}"
            )
        ends.append(found)
    wild = any(c in given["from"] + given["to"] for c in "*?[")
    for source in ends[0]:
        for target in ends[1]:
            if source == target and wild:
                continue
            rest = given["bandwidth"], given.get("latency", 0.0), given.get("bus", "")
            yield Link(source, target, *rest)
            if given.get("both", True):
                yield Link(target, source, *rest)


def _checked(where: str, what: str, table: dict[str, Any], kinds: dict[str, type]) -> dict[str, Any]:
    _known_keys(where, what, table, kinds)
    title = f"{what} {table['name']!r}" if "name" in table else what
    for key in _NEEDED.get(what, ()):
        if key not in table:
            raise BadInput(f"{where}: {title}: no {key!r}")
    return {key: float(value) if kinds[key] is float else value for key, value in table.items()}


def _known_keys(where: str, what: str, table: dict[str, Any], kinds: dict[str, type]) -> None:
    for key, value in table.items():
        if key not in kinds:
            raise BadInput(f"{where}: {what}: unknown key {key!r}: the keys are {', '.join(kinds)}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        title = f"{what} {table['name']!r}" if "name" in table else what
        if not (number if kinds[key] is float else isinstance(value, kinds[key])):
            raise BadInput(f"{where}: {title}: {key} must be a {kinds[key].__name__}, not {value!r}")
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise BadInput(f"{where}: {title}: {key} must be below 1.8e308, not an integer of {len(str(value))} digits")
