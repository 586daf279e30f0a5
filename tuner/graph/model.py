"""What a loaded network is: `Model`, the one value that every step of the graph package starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm.ir import IRModule


@dataclass(frozen=True)
class TensorInfo:
    """Name, static shape and dtype of a network's input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Model:
    """A network as one Relax dataflow function `main`, with constant weights and static shapes.

    `node_names` maps names of Relax variables to the names of the nodes that they came from. `sha256` is the digest
    of what was loaded, `source` says where from.
    """

    name: str
    module: IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    sha256: str
    source: str
    node_names: Mapping[str, str] = field(default_factory=dict)
