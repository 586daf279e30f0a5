"""A built module as a graph: `flow_of` reads the program that its virtual machine runs, so that what is drawn is what
was built, transforms of layouts and copies between devices included. Which of its calls run at the same time its
manifest says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import tvm

from tuner.devices.parallel.stage import STAGE
from tuner.errors import BadInput
from tuner.graph import COPY
from tuner.module import Manifest
from tuner.module.runtime import Attribution
from tuner.stages import Stage
from tuner.stages.rewrite import ASIDE, BACK, JOIN

_CALL = re.compile(r"\s*call\s+(\S+)\s+in:\s*(.*?)\s*dst:\s*(\S+)\s*$")
_RETURN = re.compile(r"\s*ret\s+(%\d+)\s*$")
_BUILTIN = "vm.builtin."
_FUNCTION = re.compile(r"f\[.*\]$")
_STREAMS = {ASIDE, BACK, JOIN}
_NO_VALUE = {"check_tensor_info", "match_shape", "null_value", "alloc_shape_heap"}


def flow_of(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """`nodes`: name, kind ("input", "kernel", "other", "copy" or "output"), index of the device, place among the
    manifest's operators (None: no template computes it), and of a module in stages its stage and group (None: of no
    stage), counted from 0; groups of a stage run at the same time. `edges`: pairs of places of nodes.

    Raises BadInput where the manifest's stages are not those of the program.
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
    """Stage and group of every kernel, in the order in which they are launched. Raises ValueError."""
    for number, stage in enumerate(map(Stage.from_text, stages)):
        if stage.merged:
            yield number, 0
            continue
        for group in stage.launched:
            yield from [(number, stage.groups.index(group))] * len(group)


@dataclass
class _Reader:
    """`made`: by register, which nodes have written what it holds; `fresh`: registers whose tensors nobody has;
    `turns`: of the kernels that are still to come."""

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
        """The kernels of a stage of the host's: functions among the arguments of one call, each with its own behind."""
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
        """Functions write their last arguments. One that writes a part of a tensor, which others have begun, reads
        nothing of it."""
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
