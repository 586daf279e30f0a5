"""Where kernels run on this board. Start at `open_backend`; `tvm_cpu` is the first there is.

A backend has tensors on a device, and functions (of a kind of its own) that take them; `call` returns the seconds that
one call took there.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Sequence

import numpy as np

# Kind of device, how candidates come, and the module with its `open_backend(number, threads, cpus)`.
BACKENDS: dict[tuple[str, str], str] = {
    ("cpu", "library"): "board_agent.tvm_cpu",
    ("opencl", "launches"): "board_agent.opencl",
    ("cuda", "launches"): "board_agent.cuda",
}

_MOST_COPIES = 1024


class Unusable(Exception):
    """The device, or what drives it, is not here; one line says what is missing."""


class NotCompiled(Exception):
    """The device's own compiler refused a kernel; one line says why."""


class Backend:
    """What a worker needs of a device; see the module's docstring. Methods raise whatever the device raises."""

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Open the device; `folder`: the one that may be written. To be called when the process is confined, as drivers
        start threads. Raises Unusable."""

    def describe(self) -> dict[str, Any]:
        """What the device's driver says of it."""
        return {}

    def tensor(self, array: np.ndarray) -> Any:
        """A copy of an array on the device, with a guard around or behind it (see board_agent.guards)."""
        raise NotImplementedError

    def is_whole(self, tensor: Any) -> bool:
        """Whether nobody wrote into a tensor's guard."""
        raise NotImplementedError

    def fill(self, tensor: Any, value: float) -> None:
        """Give a tensor a value everywhere."""
        raise NotImplementedError

    def array(self, tensor: Any) -> np.ndarray:
        """What a tensor holds now."""
        raise NotImplementedError

    def cold(self, array: np.ndarray, cold_bytes: int) -> list[Any]:
        """Copies of an array that exceed `cold_bytes` together: calls that take them in turn find them in no cache."""
        copies = min(_MOST_COPIES, max(1, -(-cold_bytes // max(1, array.nbytes))))
        return [self.tensor(array) for _ in range(copies)]

    def load(self, path: Path) -> Any:
        """The function of a built candidate. Raises NotCompiled where that is done here."""
        raise NotImplementedError

    def use_pool(self, path: Path) -> None:
        """Let a library of the host's run parallel loops."""
        raise Unusable("this device has no use for a thread pool")

    def ready(self) -> None:
        """The first kernel has run: threads are there."""

    def call(self, function: Any, arguments: Sequence[Any]) -> float:
        raise NotImplementedError


def open_backend(device: str, form: str, threads: int, cpus: Sequence[int] | None = None) -> Backend:
    """The backend for a device's name ("cpu", "opencl:0") and a form that candidates come in. Raises Unusable."""
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
