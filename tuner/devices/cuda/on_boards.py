"""Describes the CUDA devices of boards. Start at `CudaOnBoards`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.target import Target

from tuner.devices.base import Device
from tuner.devices.cuda.opening import CudaInfo
from tuner.devices.kind import OnBoards
from tuning_db.record import DeviceKey


class CudaOnBoards(OnBoards):
    """Describes the CUDA devices of boards. What their driver says has the fields of `CudaInfo`."""

    form = "launches"
    package = "pycuda"

    def listed(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {f"cuda:{index}": described for index, described in enumerate(facts["cuda"])}

    def device(self, name: str, facts: dict[str, Any], described: dict[str, Any], threads: int | None) -> Device:
        return CudaInfo.of(described).device(name)

    def key(self, facts: dict[str, Any], described: dict[str, Any], target: Target, threads: int) -> DeviceKey:
        return CudaInfo.of(described).key
