"""Find the first node of a model's file whose result a built module gets wrong. Start at `first_off`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from templates.reference import relative_error
from tuner.errors import BadInput
from tuner.graph import Parts
from tuner.measure.scratch import Scratch
from tuner.module.reference import OnnxReference
from tuner.module.runtime import Module

Build = Callable[[Path, Path], Module]  # builds a model's file into a folder that does not exist yet


def first_off(
    parts: Parts, output: str, inputs: Mapping[str, np.ndarray], *, allowed: float, build: Build
) -> str | None:
    """Name a node whose result is off by more than `allowed` of its largest value, while everything that the node reads
    is right. `output` is known to be off for these inputs. Return None if no tensor that is off can be built and
    compared alone.

    The search bisects the nodes in question. Each step builds and runs the part of the model that computes the node in
    the middle, which takes seconds.
    """
    compare = _Comparison(parts, inputs, allowed, build)
    behind = parts.behind(output)
    candidates = [name for name in parts.tensors if name in behind]
    found: str | None = None
    while candidates:  # the tensor that follows the last candidate is off
        at = (len(candidates) - 1) // 2
        is_off = compare.is_off(candidates[at])
        if is_off:
            found = candidates[at]
            candidates = candidates[:at]
        elif is_off is None:
            del candidates[at]
        else:
            candidates = candidates[at + 1 :]
    # The error may begin in another branch, whose nodes come before one that is right and so were passed over.
    while found is not None and (read := next(filter(compare.is_off, parts.read_by(found)), None)) is not None:
        found = read
    return None if found is None else parts.node_of(found)


class _Comparison:
    """A comparison of tensors with the reference that computes each tensor only once."""

    def __init__(self, parts: Parts, inputs: Mapping[str, np.ndarray], allowed: float, build: Build) -> None:
        self._parts, self._inputs, self._allowed, self._build = parts, inputs, allowed, build
        self._known: dict[str, bool | None] = {}

    def is_off(self, tensor: str) -> bool | None:
        """Return whether a tensor is off. Return None if a model of the tensor alone cannot be built, or cannot be
        computed by the reference."""
        if tensor not in self._known:
            try:
                self._known[tensor] = self._error(tensor) > self._allowed
            except BadInput:
                self._known[tensor] = None
        return self._known[tensor]

    def _error(self, tensor: str) -> float:
        with Scratch() as folder:
            file = folder / "part.onnx"
            file.write_bytes(self._parts.model(tensor).SerializeToString())
            module = self._build(file, folder / "built")
            given = {name: self._inputs[name] for name in module.inputs}
            (result,), (wanted,) = module(given).values(), OnnxReference(file)(given).values()
            return relative_error(np.asarray(result), np.asarray(wanted))
