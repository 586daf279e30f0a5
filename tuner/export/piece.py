"""Exports a piece of a network, such as one step, to time it where the network is going to run. Start at `Piece`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tvm import tirx
from tvm.ir import IRModule

from tuner.devices import Device
from tuner.export.bare import Bare
from tuner.graph import NoProgramError, Value, program_of


@dataclass(frozen=True)
class Piece:
    """The kernels that "main" of a finished module calls, `repeats` times one after the other on the device of an
    index. What they read that they do not make is constant: random numbers where it is of floats, else zeros, as it
    may be indices."""

    module: IRModule
    device: int
    repeats: int = 1

    def export(self, devices: Sequence[Device], folder: Path) -> None:
        """Export the piece for some devices to a folder. Raises what `Bare.export` raises, and RuntimeError for a
        module that does more than call kernels."""
        lifted: list[np.ndarray] = []
        try:
            program = program_of(self.module, 0, lifted)
        except NoProgramError as error:
            raise RuntimeError(f"it cannot be exported: {error}") from error
        bare, rng = Bare(devices), np.random.default_rng(0)
        for value in program.values:
            bare.value(self.device, value.shape, value.dtype, value.memory)
        given = program.constants[: len(program.constants) - len(lifted)]
        arrays = [*(_values(program.values[i], rng) for i in given), *lifted]
        for constant, array in zip(program.constants, arrays, strict=True):
            bare.hold(constant, array)
        kernels = {str(n.name_hint): f for n, f in self.module.functions.items() if isinstance(f, tirx.PrimFunc)}
        for call in program.calls * self.repeats:
            bare.call(self.device, kernels[call.function], call.operands)
        bare.export(self.device, folder)


def _values(value: Value, rng: np.random.Generator) -> np.ndarray:
    if value.dtype.startswith("float"):
        return rng.standard_normal(value.shape).astype(value.dtype)
    return np.zeros(value.shape, value.dtype)
