"""Runs the built module itself, as one contender among its peers. It also tells where its time goes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.report.peers.base import Inference, Shapes

if TYPE_CHECKING:
    from tuner.module import Module


class Ours:
    """A peer that runs a module built here."""

    name = "edgetune"
    modules: tuple[str, ...] = ("tuner",)
    install = "pip install edgetune"

    def __init__(self) -> None:
        self._opened: Module | None = None

    def version(self) -> str:
        return f"edgetune {version('edgetune')}"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        from tuner.module import load

        self._opened = load(source)
        if self._opened.manifest.computes_on_host and self._opened.threads != threads:
            raise RuntimeError(f"the module runs on {self._opened.threads} threads, not {threads}")
        return self._opened.in_place

    def profile(self, inputs: Mapping[str, np.ndarray], threads: int) -> dict[str, Any]:
        """Return the seconds of every kernel call in execution order, and the peaks in operations a second, by
        precision.

        The peaks are those of the device, or of `threads` threads of the CPU if the module runs on the CPU.
        """
        from tuner.devices import open_device
        from tuner.devices.peak import fma_peak
        from tuner.devices.roof import peaks_of
        from tuner.module import device_for

        assert self._opened is not None
        manifest = self._opened.manifest
        device = open_device("cpu", threads) if manifest.computes_on_host else device_for(manifest.devices[0])
        calls = [
            {
                "name": call.name,
                "function": call.function,
                "seconds": call.seconds,
                "workload": call.operator and call.operator.workload.as_dict(),
                "config": call.operator and call.operator.config and call.operator.config.as_dict(),
            }
            for call in self._opened.profile(inputs)
        ]
        with self._opened.on_its_cores():  # elsewhere the peak's kernel would share a core with a thread of the pool
            dtypes = [operator.workload.dtype for operator in manifest.operators]
            return {"calls": calls, "peaks": peaks_of(device, dtypes, fma_peak(device))}
