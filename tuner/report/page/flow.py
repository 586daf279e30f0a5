"""Reads a built module as a graph. Start at `flow_of`.

It reads the program that the module's virtual machine runs, so the graph shows what was built, including transforms of
layouts and copies between devices. The module's manifest says which calls run at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import tvm

from tuner.devices.opencl import ASIDE, BACK, JOIN
from tuner.devices.parallel.stage import STAGE
from tuner.errors import BadInput
from tuner.graph import COPY
from tuner.module import Manifest
from tuner.module.runtime import Attribution
from tuner.stages import Stage

_CALL = re.compile(r"\s*call\s+(\S+)\s+in:\s*(.*?)\s*dst:\s*(\S+)\s*$")
_RETURN = re.compile(r"\s*ret\s+(%\d+)\s*$")
_BUILTIN = "vm.builtin."
_FUNCTION = re.compile(r"f\[.*\]$")
_STREAMS = {ASIDE, BACK, JOIN}
_NO_VALUE = {"check_tensor_info", "match_shape", "null_value", "alloc_shape_heap"}


def flow_of(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the graph of a built module as `nodes` and `edges`.

    A node has these fields:

    - `name`, and `kind`: "input", "kernel", "other", "copy" or "output".
    - `device` is the index of its device.
    - `operator` is the index of its operator in the manifest, None if no template computes the node.
    - `stage` and `group` are counted from 0, and None outside of stages. Groups of a stage run at the same time.

    An edge is a pair of indices of nodes: the second reads what the first wrote. Raises BadInput if the manifest's
    stages are not those of the program.
    """
    load = tvm.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
    text = str(load(str(folder / manifest.network))["as_text"]())
    _, _, rest = text.partition("@main:\n")
    try:
        reader = _Reader(manifest)
        for line in rest.partition("\n@")[0].splitlines():
            reader.read(line)
        complete = not manifest.stages or next(reader.turns, None) is None
    except (ValueError, StopIteration):
        complete = False
    if not complete:
        raise BadInput(f"{folder}: its manifest has other stages than its program: build the module again")
    return {"nodes": reader.nodes, "edges": sorted(reader.edges)}


def _turns(stages: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield stage and group of every kernel in launch order. Raises ValueError if a text is no stage."""
    for number, stage in enumerate(map(Stage.from_text, stages)):
        if stage.merged:
            yield number, 0
            continue
        for group in stage.launched:
            yield from [(number, stage.groups.index(group))] * len(group)


@dataclass
class _Reader:
    """A reader that collects nodes and edges from the lines of a program.

    - `made` has for each register the nodes that have written its value.
    - `devices` has for each register the index of its device.
    - `fresh` has the registers of tensors that no kernel has written yet.
    - `turns` yields stage and group of the kernels that are still to come.
    """

    manifest: Manifest
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    made: dict[str, list[int]] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._behind = Attribution(self.manifest.operators)
        self._place = {id(operator): i for i, operator in enumerate(self.manifest.operators)}
        self.turns = _turns(self.manifest.stages)
        for i, (info, device) in enumerate(zip(self.manifest.inputs, self.manifest.input_devices, strict=True)):
            self.made[f"%{i}"] = [self._node(info.name, "input", device)]
            self.devices[f"%{i}"] = device

    def _node(
        self,
        name: str,
        kind: str,
        device: int,
        *,
        operator: int | None = None,
        turn: tuple[int | None, int | None] = (None, None),
    ) -> int:
        stage, group = turn
        more = {"stage": stage, "group": group}
        self.nodes.append({"name": name, "kind": kind, "device": device, "operator": operator, **more})
        return len(self.nodes) - 1

    def read(self, line: str) -> None:
        if (call := _CALL.match(line)) is not None:
            name, words, to = call[1], [w.strip() for w in call[2].split(",")], call[3]
            if name.startswith(_BUILTIN):
                self._builtin(name.removeprefix(_BUILTIN), words, to)
            elif name == STAGE:
                self._stage(words)
            elif name not in _STREAMS:
                self._kernel(name, [w for w in words if w.startswith("%")])
        elif (end := _RETURN.match(line)) is not None:
            self._connect(self.made.get(end[1], []), self._node("", "output", self.devices.get(end[1], 0)))

    def _stage(self, words: Sequence[str]) -> None:
        """Read the kernels of a stage on the host.

        One call runs the stage. Its arguments are the kernels' functions, each followed by the function's arguments.
        """
        starts = [i for i, word in enumerate(words) if _FUNCTION.match(word)]
        for start, end in pairwise([*starts, len(words)]):
            name = words[start].removeprefix("f[").removesuffix("]")
            self._kernel(name, [w for w in words[start + 1 : end] if w.startswith("%")])

    def _builtin(self, name: str, words: Sequence[str], to: str) -> None:
        self.fresh.discard(to)
        if name in _NO_VALUE or to == "%void":
            self.made.pop(to, None)
        elif name == "alloc_storage":
            self.devices[to] = int(words[2].removeprefix("i"))
        elif name == "alloc_tensor":
            self.devices[to] = self.devices.get(words[0], 0)
            self.made[to] = []
            self.fresh.add(to)
        else:  # a view, a tuple: the same values under another name
            read = [word for word in words if word in self.made]
            self.made[to] = sorted({node for word in read for node in self.made[word]})
            self.devices[to] = self.devices.get(read[0], 0) if read else 0

    def _kernel(self, name: str, registers: Sequence[str]) -> None:
        """Add the node and the edges of one kernel call.

        A function writes its last arguments. A kernel that writes a part of a tensor, of which other kernels have
        written parts, does not read that tensor.
        """
        tensors = [r for r in registers if r in self.made]
        operator = self._behind.next(name)
        if operator is not None and operator.parts:
            written = tensors[-operator.results :]
        else:
            written = [r for r in tensors if r in self.fresh] or tensors[-1:]
        kind = "copy" if name == COPY else "kernel" if operator is not None else "other"
        device = self.devices.get(written[-1], 0) if written else 0
        place = None if operator is None else self._place[id(operator)]
        turn = next(self.turns) if self.manifest.stages else (None, None)
        node = self._node(name if operator is None else operator.node, kind, device, operator=place, turn=turn)
        for register in tensors:
            if register not in written:
                self._connect(self.made[register], node)
        for register in written:
            self.made[register] = [node] if register in self.fresh else [*self.made[register], node]
            self.fresh.discard(register)

    def _connect(self, makers: Sequence[int], node: int) -> None:
        self.edges.update((maker, node) for maker in makers)
