"""Makes the key of an OpenCL or CUDA device in the tuning database, the same for a real device and for its profile.

Start at `device_key`; `flush_every` says how often a family's drivers need their queues flushed.
"""

from __future__ import annotations

import re
from dataclasses import replace

from templates.gpu.limits import GpuLimits
from tuning_db.record import DeviceKey

_MARKS = re.compile(r"\((r|tm|c)\)|\[[^]]*\]|\b(intel|nvidia|arm|graphics)\b|\br\d+p\d+\b")
# Memory sizes and board variants do not change a kernel: "H100 80GB HBM3", "H100 PCIe".
_VARIANTS = re.compile(r"\b(\d+gb|hbm\d\w*|sxm\d?|pcie|nvl)\b")
_ALIASES = {"mali-lodx": "mali-g610"}  # some drivers for the RK3588 report the first name
# Drivers of Mali hang, or run out of memory, when some thousands of launches are queued; this is not documented. The
# number is our choice, far below that and still enough to hide a launch's cost.
_FLUSH_EVERY = {"mali": 16}
_EMULATED = "-emulated"


def flush_every(family: str) -> int:
    """Return after how many launches a queue of such a device has to be flushed; 0 leaves that to its driver.
    (Measuring needs no other cap: every call is waited for before the next.)"""
    return _FLUSH_EVERY.get(family, 0)


def model_of(reported: str) -> str:
    """Reduce a device's name, as its driver reports it, to the part: "Intel(R) HD Graphics 505 [0x5A84]" and "HD
    Graphics 505" are both "hd-505", "Mali-T860 r2p0" is "mali-t860", "NVIDIA H100 80GB HBM3" is "h100"."""
    text = _VARIANTS.sub(" ", _MARKS.sub(" ", reported.lower()))
    name = re.sub(r"[^a-z0-9.]+", "-", text).strip("-")
    return _ALIASES.get(name, name)


def unless_emulated(key: DeviceKey, emulated: bool) -> DeviceKey:
    """Return the key, which is marked for an emulated processor. The times of such a processor are no real one's, and
    must not pass for those of its family."""
    if not emulated:
        return key
    return replace(key, family=key.family + _EMULATED, model=key.model + _EMULATED)


def is_emulated(key: DeviceKey) -> bool:
    """Tell whether a key belongs to a processor that another one emulates (qemu): its times mean nothing."""
    return key.family.endswith(_EMULATED)


def device_key(limits: GpuLimits, reported: str, compute_units: int | None = None, **more: int | str) -> DeviceKey:
    """Make the key of the device that its driver calls `reported`. `more` is what else is known (arch,
    driver, clock)."""
    attrs: dict[str, object] = {
        "max_threads": limits.max_threads,
        "local_memory_bytes": limits.local_memory_bytes,
        "lanes": limits.lanes,
        "subgroups": limits.subgroups,
        "fp16": limits.fp16,
    }
    if compute_units is not None:
        attrs["compute_units"] = compute_units
    return DeviceKey(limits.kind, limits.family, model_of(reported), {**attrs, **more})
