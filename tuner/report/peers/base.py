"""What a peer is: something that opens a model and gives a function from named inputs to named outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np

Inference = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Shapes = Mapping[str, tuple[int, ...]]  # by input: those that it will be run on, also where the file leaves axes free


class Peer(Protocol):
    """A system that runs the model on the CPU in float32."""

    name: str
    module: str  # the Python package that has to be there
    install: str  # how to get it

    def version(self) -> str:
        """Its name and version, for a person."""
        ...

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        """Load the ONNX file `source` (a module's folder for ours) for `threads` threads and inputs of those shapes,
        for which a peer may plan ahead as we do. The result may be called any number of times; its arrays may be
        reused by the next call."""


def available(peer: Peer) -> bool:
    """Whether the peer's package is installed."""
    return find_spec(peer.module) is not None
