"""Write and read the files of a module's constants, one for each device. Start at `write_constants`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm

_NAME = "constants-{device}.params"


def write_constants(device: int, arrays: Sequence[np.ndarray], folder: Path) -> str | None:
    """Write a device's constants, in order. Return the file's name, or None if there are no constants."""
    if not arrays:
        return None
    name = _NAME.format(device=device)
    (folder / name).write_bytes(tvm.runtime.save_param_dict({str(i): array for i, array in enumerate(arrays)}))
    return name


def read_constants(path: Path) -> list[tvm.runtime.Tensor]:
    """Return a device's constants, in order, in the host's memory."""
    found = tvm.runtime.load_param_dict(path.read_bytes())
    return [found[str(i)] for i in range(len(found))]
