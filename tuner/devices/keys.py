"""The key of an OpenCL or CUDA device in the tuning database, the same for a real device and for its profile.

Start at `device_key`; `launch_caps` says what a family's drivers must be spared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from templates.gpu.limits import GpuLimits
from tuning_db.record import DeviceKey

_MARKS = re.compile(r"\((r|tm|c)\)|\[[^]]*\]|\b(intel|nvidia|arm|graphics)\b|\br\d+p\d+\b")
# Memory sizes and board variants do not change a kernel: "H100 80GB HBM3", "H100 PCIe".
_VARIANTS = re.compile(r"\b(\d+gb|hbm\d\w*|sxm\d?|pcie|nvl)\b")
_ALIASES = {"mali-lodx": "mali-g610"}  # what some drivers for the RK3588 call it


@dataclass(frozen=True)
class LaunchCaps:
    """`flush_every`: after so many launches the queue is flushed; `per_repeat`: no repeat of a measurement launches
    more kernels. None: no limit."""

    flush_every: int | None = None
    per_repeat: int | None = None


# Not documented: drivers of Mali hang, or run out of memory, when some thousands of launches are queued. The numbers
# are ours, far below that and still enough to hide a launch's cost.
_LAUNCH_CAPS = {"mali": LaunchCaps(flush_every=16, per_repeat=256)}


def launch_caps(limits: GpuLimits) -> LaunchCaps:
    return _LAUNCH_CAPS.get(limits.family, LaunchCaps())


def model_of(reported: str) -> str:
    """A device's name as its driver reports it, reduced to the part: "Intel(R) HD Graphics 505 [0x5A84]" and "HD
    Graphics 505" are both "hd-505", "Mali-T860 r2p0" is "mali-t860", "NVIDIA H100 80GB HBM3" is "h100"."""
    text = _VARIANTS.sub(" ", _MARKS.sub(" ", reported.lower()))
    name = re.sub(r"[^a-z0-9.]+", "-", text).strip("-")
    return _ALIASES.get(name, name)


def device_key(limits: GpuLimits, reported: str, compute_units: int | None = None, **more: int | str) -> DeviceKey:
    """The key of the device that its driver calls `reported`. `more`: what else is known (arch, driver, clock)."""
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
