"""Writes and reads plans as files that a person can read and edit. Start at `described` and `read_plan`.

plan.json has, for every step of a network in order, its device, its kernel, and the block of the layout that it is
computed in where no template decides that (0: plain). A person may change them, and `tune build --plan` builds what
they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm.ir import Var

from board_agent.parsing import parse_json
from templates.template import search_space
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.graph.fusion.steps import PlainStep, TunedStep
from tuner.graph.layout.choice import Choice, Planned
from tuner.graph.layout.plan import Form, Move
from tuner.placement.exact import NetworkPlan
from tuner.placement.fallback import operator_of
from tuner.precision import Precision
from tuning_db.record import Config

FORMAT = 1


def described(graph: FusedGraph, devices: Sequence[Device], found: NetworkPlan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    first = len(graph.parameters)
    steps = []
    for i, step in enumerate(graph.steps):
        state = found.nodes[first + i].states[found.plan.states[first + i]]
        what: dict[str, Any] = {"node": step.node, "operator": operator_of(step)}
        what["device"] = devices[state.makes.device].name
        if isinstance(step, PlainStep):
            what["block"] = found.planned.blocks[step.out]
        else:
            what["kernel"] = parse_json(state.kernel) if state.kernel else None
        steps.append({**what, "seconds": found.plan.computing[first + i], "source": state.source})
    plan = found.plan
    return {
        "format": FORMAT,
        "model": {"name": graph.model.name, "sha256": graph.model.sha256},
        "dtype": graph.dtype,
        "precisions": [asdict(precision) for precision in graph.precisions],
        "devices": [{"name": d.name, "threads": d.threads, "key": d.key.as_dict()} for d in devices],
        "seconds": plan.seconds,
        "bound": plan.bound,
        "optimal": plan.optimal,
        "width": plan.width,
        "steps": steps,
        "moves": [_move(m, found, devices) for m in plan.moves],
    }


def _move(move: Move, found: NetworkPlan, devices: Sequence[Device]) -> dict[str, Any]:
    def form(at: Form) -> dict[str, Any]:
        return {"device": devices[at.device].name, "block": at.layout.block}

    what = "copy" if move.before.device != move.to.device else "transform"
    name = found.nodes[move.node].name
    return {what: name, "from": form(move.before), "to": form(move.to), "seconds": move.seconds}


def load_plan(path: Path) -> dict[str, Any]:
    """Return a plan file's object. Raises BadInput if the file is no plan."""
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
        formats = data["format"]
        [(d["name"], d["threads"], d["key"]["model"]) for d in data["devices"]]
        [(s["node"], s["operator"], s["device"]) for s in data["steps"]]
        data["model"]["sha256"], data["dtype"]
        precisions_of(data)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: is not a plan of `tune plan` ({type(error).__name__}: {error})") from error
    if formats != FORMAT:
        raise BadInput(
            f"{path}: has the format {formats}, this edgetune reads {FORMAT}: make it again with `tune plan`"
        )
    return dict(data)


def precisions_of(data: Mapping[str, Any]) -> tuple[Precision, ...]:
    """Return the precisions in a plan file's object, which older files lack. Raises TypeError for other entries."""
    return tuple(Precision(**entry) for entry in data.get("precisions", ()))


def read_plan(path: Path, data: Mapping[str, Any], graph: FusedGraph, devices: Sequence[Device]) -> Planned:
    """Return what the plan in `path`, whose object is `data`, says of a network. `devices` are the plan's devices,
    opened in its order.

    Raises BadInput, naming the step, where the plan does not fit the network or the devices.
    """
    if data["model"]["sha256"] != graph.model.sha256:
        name = data["model"].get("name")
        what = f"another model, or for other sizes of its free axes ({name})"
        raise BadInput(f"{path}: was made for {what}: make one with `tune plan`")
    for device, said in zip(devices, data["devices"], strict=True):
        if device.key.model != said["key"]["model"]:
            raise BadInput(f"{path}: was made for {said['name']} ({said['key']['model']}), here that is {device.title}")
    names = [device.name for device in devices]
    steps = data["steps"]
    if [(s["node"], s["operator"]) for s in steps] != [(s.node, operator_of(s)) for s in graph.steps]:
        raise BadInput(
            f"{path}: its steps are not those of the network: only devices, blocks and kernels can be changed"
        )
    placement: list[int] = []
    blocks: dict[Var, int] = {}
    kernels: dict[Var, Choice] = {}
    for step, said in zip(graph.steps, steps, strict=True):
        where = f"{path}: step {step.node!r}"
        if said["device"] not in names:
            raise BadInput(f"{where}: no device {said['device']!r} in the plan, which has {', '.join(names)}")
        placement.append(names.index(said["device"]))
        if isinstance(step, PlainStep):
            blocks[step.out] = _block(where, said.get("block", 0))
        elif said.get("kernel") is not None:
            kernels[step.out] = _choice(where, step, said, devices[placement[-1]])
    return Planned(tuple(placement), blocks, kernels)


def _block(where: str, block: Any) -> int:
    if not isinstance(block, int) or isinstance(block, bool) or not 0 <= block <= 64:
        raise BadInput(f"{where}: block {block!r} is not a number of channels from 0 (plain) to 64")
    return block


def _choice(where: str, step: TunedStep, said: Mapping[str, Any], device: Device) -> Choice:
    try:
        config = Config.from_dict(said["kernel"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where}: kernel {said['kernel']!r} has no template and knobs") from error
    space = search_space(step.workload, device.target)
    if space is None or not space.is_valid(config):
        raise BadInput(f"{where}: kernel {config.key} is not valid for it on {device.title}")
    return Choice(config, "plan", said.get("seconds"))
