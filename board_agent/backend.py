"""This module defines the backends that run kernels on this board. Start at `open_backend`; `tvm_cpu` is an example.

A backend makes tensors on a device and loads functions that take them. Their types are its own. `call` returns the
seconds that one call took on the device.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Sequence

import numpy as np

# By the kind of device and the form of candidates: the module that has `open_backend(number, threads, cpus)`.
BACKENDS: dict[tuple[str, str], str] = {
    ("cpu", "library"): "board_agent.tvm_cpu",
    ("cpu", "network"): "board_agent.networks",
    ("opencl", "launches"): "board_agent.opencl",
    ("opencl", "network"): "board_agent.networks",
    ("cuda", "launches"): "board_agent.cuda",
}

_MOST_COPIES = 1024


class Unusable(Exception):
    """Raised when the device or its driver is missing on this board. One line says what is missing."""


class NotCompiled(Exception):
    """Raised when the device's own compiler refused a kernel. One line says why."""


class Backend:
    """The interface through which a kernel server uses a device; see the module's docstring.

    Methods raise whatever the device raises.
    """

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Open the device. `folder` is the only one that may be written to.

        Call it after the process has been confined, because drivers start threads. Raises Unusable.
        """

    def describe(self) -> dict[str, Any]:
        """Return the properties of the device that its driver reports."""
        return {}

    def tensor(self, array: np.ndarray) -> Any:
        """Copy an array to the device, with guards around it or one behind it (see board_agent.guards)."""
        raise NotImplementedError

    def is_whole(self, tensor: Any) -> bool:
        """Tell whether the guards of a tensor are unchanged."""
        raise NotImplementedError

    def fill(self, tensor: Any, value: float) -> None:
        """Set all elements of a tensor to a value."""
        raise NotImplementedError

    def array(self, tensor: Any) -> np.ndarray:
        """Return the current content of a tensor."""
        raise NotImplementedError

    def cold(self, array: np.ndarray, cold_bytes: int) -> list[Any]:
        """Make copies of an array that together exceed `cold_bytes`, so that calls in turn find none in a cache."""
        copies = min(_MOST_COPIES, max(1, -(-cold_bytes // max(1, array.nbytes))))
        return [self.tensor(array) for _ in range(copies)]

    def load(self, path: Path) -> Any:
        """Load a built candidate and return its function.

        Raises NotCompiled if the device's own compiler translates it here and refuses it.
        """
        raise NotImplementedError

    def use_pool(self, path: Path) -> None:
        """Use a thread pool that the host compiled for parallel loops. Raises Unusable if that is not possible."""
        raise Unusable("this device has no use for a thread pool")

    def ready(self) -> None:
        """Be told that the first kernel has run, so that all threads have been started."""

    def call(self, function: Any, arguments: Sequence[Any]) -> float:
        raise NotImplementedError


def open_backend(device: str, form: str, threads: int, cpus: Sequence[int] | None = None) -> Backend:
    """Open the backend for a device's name ("cpu", "opencl:0") and a form of candidates. Raises Unusable."""
    kind, _, number = device.partition(":")
    module = BACKENDS.get((kind, form))
    if module is None:
        raise Unusable(f"this agent does not run candidates of the form {form!r} on {kind!r}")
    try:
        made = importlib.import_module(module).open_backend(int(number or 0), threads, cpus)
    except ImportError as error:
        wanted = f"python3 -m pip install {error.name}" if error.name else "see to that"
        raise Unusable(f"{device} cannot be used on this board: {error}: {wanted} there") from error
    assert isinstance(made, Backend)
    return made
