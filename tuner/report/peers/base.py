"""Defines a peer: an object that opens a model and returns a function from named inputs to named outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx

Inference = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Shapes = Mapping[str, tuple[int, ...]]  # of each input, as it will be run: the file may leave axes free


class Peer(Protocol):
    """A system that runs the model on the CPU in float32."""

    name: str
    modules: tuple[str, ...]  # the Python packages that have to be there
    install: str  # how to get it

    def version(self) -> str:
        """Return the peer's name and version, for a person."""
        ...

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        """Load the ONNX file `source` (for our own peer, the folder of a module) and return a function that runs it.

        It runs with `threads` threads on inputs of the given shapes, for which a peer may plan ahead as we do. The
        function may be called any number of times. The next call may reuse the arrays that it returned.
        """


def available(peer: Peer) -> bool:
    """Return whether the peer's packages are installed."""
    return all(find_spec(module) is not None for module in peer.modules)


def output_names(source: Path) -> list[str]:
    """Return the names of an ONNX file's outputs, in order."""
    return [output.name for output in onnx.load(str(source), load_external_data=False).graph.output]
