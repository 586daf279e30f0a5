"""Describes the OpenCL devices of boards. Start at `OpenclOnBoards`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.target import Target

from tuner.devices.base import Device
from tuner.devices.gpu import LEAST_CACHE_BYTES
from tuner.devices.kind import OnBoards
from tuner.devices.opencl.listing import info_of
from tuner.devices.opencl.opening import device_of, family_of, key_of
from tuning_db.record import DeviceKey


class OpenclOnBoards(OnBoards):
    """Describes the OpenCL devices of boards. What their driver says has the fields of `DeviceInfo`, and
    "cache_bytes"."""

    form = "launches"
    package = "pyopencl"

    def listed(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {f"opencl:{index}": described for index, described in enumerate(facts["opencl"])}

    def device(self, name: str, facts: dict[str, Any], described: dict[str, Any], threads: int | None) -> Device:
        info, cache = info_of(described), int(described.get("cache_bytes", 0))
        if family_of(info) == "cpu":
            cache = int(facts["last_level_cache_bytes"])
        is_emulated = bool(facts.get("emulated"))
        return device_of(name, info, cache_bytes=max(cache, LEAST_CACHE_BYTES), is_emulated=is_emulated)

    def key(self, facts: dict[str, Any], described: dict[str, Any], target: Target, threads: int) -> DeviceKey:
        return key_of(info_of(described), bool(facts.get("emulated")))
