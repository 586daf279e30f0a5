"""What a GPU target (OpenCL or CUDA) allows, kept in the target itself. Start at `gpu_target` and `gpu_limits`.

TVM's targets have fields for threads and local memory; everything else travels as keys ("lanes4", "fp16",
"subgroup16"), so that a target's text, which goes to the workers and into a module's manifest, is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tvm.target import Target

KINDS = ("opencl", "cuda")
FAMILIES = ("cpu", "intel", "mali", "adreno", "nvidia", "amd", "other")

# Float32 values per work-item that sums may take before a kernel spills: a thread's register file over its lanes,
# less what operands and addresses need. Intel: 4 KiB a thread of 16 lanes; Mali: 64 values at half its threads;
# Nvidia: 255 registers. A CPU's depends on its vectors and is computed.
_SUMS = {"intel": 48, "mali": 48, "adreno": 48, "nvidia": 168, "amd": 128, "other": 48}
_LANES = re.compile(r"lanes(\d+)")
_SUBGROUP = re.compile(r"subgroup(\d+)")
_ARCH = re.compile(r"sm_(\d+)")


@dataclass(frozen=True)
class GpuLimits:
    """`max_threads`: work-items in a group. `lanes`: float32 lanes of a vector worth using. `subgroups`: sizes that a
    kernel may require (none: no subgroup functions). `fp16`: arithmetic and storage in half precision. `arch`: a
    CUDA device's ("sm_87"), which says what instructions it has; empty: not known."""

    kind: str
    family: str
    max_threads: int
    local_memory_bytes: int
    lanes: int
    subgroups: tuple[int, ...] = ()
    fp16: bool = False
    arch: str = ""

    @property
    def capability(self) -> int:
        """CUDA's compute capability times ten, 87 for "sm_87"; 0: not known, or not CUDA."""
        return int(found[1]) if (found := _ARCH.match(self.arch)) else 0

    @property
    def copies_asynchronously(self) -> bool:
        """Whether items can copy into local memory without waiting (cp.async: PTX ISA, compute capability 8.0)."""
        return self.shares_memory and self.capability >= 80

    @property
    def sums(self) -> int:
        """Float32 values per work-item that accumulators may take."""
        if self.family == "cpu":  # as many vectors as the CPU templates use
            return self.lanes * (28 if self.lanes >= 16 else 12)
        return _SUMS[self.family]

    @property
    def max_unrolled(self) -> int:
        """Vector multiply-adds in an unrolled body: longer ones overflow instruction caches and take a driver's
        compiler seconds. A CPU runs short ones as fast (its loop costs nothing beside a register tile)."""
        return 16 * self.lanes if self.family == "cpu" else 512

    @property
    def shares_memory(self) -> bool:
        """Whether local memory may be worth using. On a CPU it is memory like all other, and a barrier is dear."""
        return self.local_memory_bytes > 0 and self.family != "cpu"

    def stores(self, dtype: str) -> bool:
        """Whether kernels can read and write values of this type."""
        return dtype == "float32" or (dtype == "float16" and self.fp16)

    @property
    def max_vector(self) -> int:
        """Lanes of the widest vector type: CUDA's loads and TVM's code for them end at 128 bits."""
        return 4 if self.kind == "cuda" else 16


def gpu_target(limits: GpuLimits, host: Target | None = None, model: str = "") -> Target:
    """The target of a device with these limits. `host`: for the host code (default: this machine's, by TVM's own
    default).

    Raises ValueError for an unknown kind or family.
    """
    if limits.kind not in KINDS or limits.family not in FAMILIES:
        raise ValueError(f"no such GPU: kind {limits.kind!r}, family {limits.family!r}")
    keys = [limits.family, limits.kind, "gpu", f"lanes{limits.lanes}"]
    keys += [f"subgroup{size}" for size in limits.subgroups] + (["fp16"] if limits.fp16 else [])
    options: dict[str, object] = {
        "kind": limits.kind,
        "keys": keys,
        "max_num_threads": limits.max_threads,
        "max_threads_per_block": limits.max_threads,
        "max_shared_memory_per_block": limits.local_memory_bytes,
        # On OpenCL anything but 1 makes TVM put barriers into divergent flow when it reduces across threads.
        "thread_warp_size": 32 if limits.kind == "cuda" else 1,
    }
    if model:
        options["model"] = model
    if limits.arch:
        options["arch"] = limits.arch
    if limits.kind == "opencl":
        options["device"] = limits.family
    target = Target(options)
    return target if host is None else target.with_host(host)


def gpu_limits(target: Target) -> GpuLimits | None:
    """What `gpu_target` put into a target; None for a target that is no GPU's.

    A GPU target made otherwise gets TVM's attributes, vectors of 4 and the family "other" (CUDA: "nvidia").
    """
    if target.kind.name not in KINDS:
        return None
    keys = [str(key) for key in target.keys]
    family = next((key for key in keys if key in FAMILIES), "nvidia" if target.kind.name == "cuda" else "other")
    return GpuLimits(
        kind=target.kind.name,
        family=family,
        max_threads=int(target.attrs.get("max_threads_per_block", 256)),
        local_memory_bytes=int(target.attrs.get("max_shared_memory_per_block", 0)),
        lanes=next(iter(_numbers(_LANES, keys)), 4),
        subgroups=_numbers(_SUBGROUP, keys),
        fp16="fp16" in keys,
        arch=str(target.attrs.get("arch", "")),
    )


def gpu_limits_of(target: Target) -> GpuLimits:
    """The limits of a target that is known to be a GPU's."""
    limits = gpu_limits(target)
    assert limits is not None
    return limits


def _numbers(pattern: re.Pattern[str], keys: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(found[1]) for found in map(pattern.fullmatch, keys) if found)
