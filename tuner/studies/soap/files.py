"""Reads and writes strategies as JSON that a person can read and change. Start at `strategy_json`.

{"network": "lenet", "topology": "p100:4", "operators": {"conv1": {"split": {"sample": 2, "rows": 2},
 "devices": ["gpu0", "gpu1", "gpu2", "gpu3"]}, ...}}
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from board_agent.parsing import parse_json
from tuner.errors import BadInput
from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.soap.configs import PartConfig, Strategy
from tuner.studies.topology import Topology

# The names of an output's dimensions in files, by the number of dimensions.
_NAMES = {
    1: ("channels",),
    2: ("sample", "channels"),
    3: ("sample", "steps", "channels"),
    4: ("sample", "channels", "rows", "columns"),
}


def dimension_names(operator: NetworkOperator) -> tuple[str, ...]:
    """Return the names that the dimensions of an operator's output have in files."""
    return _NAMES.get(len(operator.shape), tuple(f"dim{i}" for i in range(len(operator.shape))))


def strategy_json(network: Network, topology: Topology, strategy: Strategy) -> dict[str, Any]:
    """Return a strategy as `write_strategy` writes it: for each operator its split dimensions and the devices of its
    parts."""
    operators = {}
    for operator, config in zip(network.operators, strategy, strict=True):
        names = dimension_names(operator)
        split = {name: degree for name, degree in zip(names, config.degrees, strict=True) if degree > 1}
        operators[operator.name] = {"split": split, "devices": [topology.devices[d].name for d in config.devices]}
    return {"network": network.name, "topology": topology.name, "operators": operators}


def write_strategy(path: Path, network: Network, topology: Topology, strategy: Strategy) -> None:
    """Write a strategy to a file, one operator a line. Raises BadInput where the file cannot be written."""
    data = strategy_json(network, topology, strategy)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in data["operators"].items())
    head = f'{{"network": {json.dumps(network.name)}, "topology": {json.dumps(topology.name)}, "operators": {{'
    try:
        path.write_text(f"{head}\n{lines}\n}}}}\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"strategy {path}: cannot be written ({error.strerror})") from error


def read_strategy(path: Path, network: Network, topology: Topology) -> Strategy:
    """Read a strategy from a file. Raises BadInput, naming file and operator, for what cannot be used."""
    return strategy_from(_loaded(path), network, topology, str(path))


def devices_in(path: Path) -> list[str]:
    """Return the names of the devices to which a strategy's file gives work. Raises BadInput if the file holds no
    strategy."""
    given = [operator for operator in _operators(_loaded(path), str(path)).values() if isinstance(operator, dict)]
    devices = [operator["devices"] for operator in given if isinstance(operator.get("devices"), list)]
    return list(dict.fromkeys(name for names in devices for name in names if isinstance(name, str)))


def _loaded(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"strategy {path}: cannot be read as JSON: {error}") from error


def _operators(data: Any, where: str) -> dict[str, Any]:
    operators = data.get("operators") if isinstance(data, dict) else None
    if not isinstance(operators, dict):
        raise BadInput(f"{where}: no 'operators': a strategy says of every operator how it is split and where it is")
    return operators


def strategy_from(data: Any, network: Network, topology: Topology, where: str = "strategy") -> Strategy:
    """Convert what `strategy_json` returns to a strategy. Raises BadInput for what cannot be used; `where` names it."""
    operators = _operators(data, where)
    known = {o.name for o in network.operators}
    for name in operators:
        if name not in known:
            raise BadInput(f"{where}: {network.name} has no operator {name!r}")
    missing = next((o.name for o in network.operators if o.name not in operators), None)
    if missing is not None:
        raise BadInput(f"{where}: operator {missing!r} of {network.name} is missing")
    return tuple(_config(f"{where}: operator {o.name!r}", operators[o.name], o, topology) for o in network.operators)


def _config(where: str, given: Any, operator: NetworkOperator, topology: Topology) -> PartConfig:
    if not isinstance(given, dict) or set(given) - {"split", "devices"} or not isinstance(given.get("devices"), list):
        raise BadInput(f'{where}: must be {{"split": {{...}}, "devices": [...]}}')
    split, names = given.get("split", {}), dimension_names(operator)
    if not isinstance(split, dict):
        raise BadInput(f'{where}: split must be an object like {{"sample": 2}}')
    may = {
        name: size if axis != "-" else 1 for name, size, axis in zip(names, operator.shape, operator.axes, strict=True)
    }
    for name, degree in split.items():
        if name not in may or may[name] == 1:
            cuttable = ", ".join(n for n, most in may.items() if most > 1)
            raise BadInput(f"{where}: cannot be split along {name!r}" + (f": give {cuttable}" if cuttable else ""))
        if not isinstance(degree, int) or isinstance(degree, bool) or not 1 <= degree <= may[name]:
            raise BadInput(f"{where}: {name} can be cut into 1 to {may[name]} parts, not {degree!r}")
    degrees = tuple(split.get(name, 1) for name in names)
    if len(given["devices"]) != math.prod(degrees):
        raise BadInput(f"{where}: {math.prod(degrees)} parts need as many devices, not {len(given['devices'])}")
    devices = []
    for name in given["devices"]:
        if name not in topology.index:
            known = ", ".join(d.name for d in topology.devices)
            raise BadInput(f"{where}: unknown device {name!r}: {topology.name} has {known}")
        device = topology.index[name]
        if operator.kind in topology.devices[device].lacks:
            raise BadInput(f"{where}: {name} cannot compute {operator.kind}")
        devices.append(device)
    return PartConfig(degrees, tuple(devices))
