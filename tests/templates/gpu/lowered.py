"""What a function for a GPU becomes: its launches, and what is left on the host."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.target import Target


@dataclass(frozen=True)
class Lowered:
    """`launches`: the extents by tag ("blockIdx.x") of every kernel launch (-1: computed when it is launched);
    `host_stores`: stores outside kernels."""

    launches: tuple[dict[str, int], ...]
    host_stores: int

    def items(self) -> list[int]:
        """Work-items per group, of every launch."""
        return [prod(n for tag, n in launch.items() if tag.startswith("threadIdx")) for launch in self.launches]


def lowered(func: tirx.PrimFunc, target: Target) -> Lowered:
    """The function after TVM's lowering for `target`, which needs a host."""
    module = tirx.transform.BindTarget(target)(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    host = [f for f in pipeline(module).functions.values() if f.attrs["target"].kind.name == "llvm"]
    launches: list[dict[str, int]] = []
    stores: list[Any] = []

    def call(node: Call) -> None:
        if getattr(node.op, "name", "").endswith("call_ffi_kernel"):
            tags = [str(tag) for tag in node.attrs.launch_params]
            extents = list(node.args)[len(node.args) - len(tags) :]
            launches.append({tag: _constant(extent) for tag, extent in zip(tags, extents, strict=True)})

    for one in host:
        tvm_ffi.structural_walk(one.body, [(Call, call), (tirx.BufferStore, stores.append)])
    return Lowered(tuple(launches), len(stores))


def _constant(extent: Any) -> int:
    return int(extent) if isinstance(extent, int | tirx.IntImm) else -1
