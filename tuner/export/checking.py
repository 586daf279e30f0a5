"""Compare an exported network with the module that it was made from. Start at `check_equal`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import VerificationFailed
from tuner.module import load, random_inputs

_SEEDS = (0, 1)


def wrapper_of(folder: Path, name: str) -> Any:
    """Import the Python wrapper of the export `name` in a folder, and return the module."""
    spec = importlib.util.spec_from_file_location(f"edgetune_export_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    wrapper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wrapper)
    return wrapper


def check_equal(directory: Path, folder: Path, name: str) -> None:
    """Run the module in `directory` and the export `name` in `folder` on random inputs.

    Raises VerificationFailed if any output differs in any bit.
    """
    module = load(directory, pin=False)
    network = wrapper_of(folder, name).Network(keep=False)
    for seed in _SEEDS:
        inputs = random_inputs(module.manifest.inputs, seed)
        made = network(inputs)
        for output, expected in module(inputs).items():
            if not _same(made[output], expected):
                raise VerificationFailed(f"{folder}: output {output!r} differs from the module's in {directory}")


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()
