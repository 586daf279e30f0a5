"""The limits of a GPU (OpenCL or CUDA) are kept in its target. Start at `gpu_target` and `gpu_limits`.

TVM's targets have fields for threads and local memory. All other limits are written as keys ("lanes4", "fp16",
"subgroup16"), so that a target's text, which is sent to the workers and stored in a module's manifest, is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tvm.target import Target

from templates.integers import INTEGERS

KINDS = ("opencl", "cuda")
FAMILIES = ("cpu", "intel", "mali", "adreno", "nvidia", "amd", "other")

# Float32 values per work-item that sums may take before a kernel spills. This is a thread's register file divided by
# its lanes, less what operands and addresses need. Intel has 4 KiB for a thread of 16 lanes, Mali 64 values with half
# its threads, Nvidia 255 registers. The number of a CPU depends on its vectors and is computed.
_SUMS = {"intel": 48, "mali": 48, "adreno": 48, "nvidia": 168, "amd": 128, "other": 48}
_LANES = re.compile(r"lanes(\d+)")
_SUBGROUP = re.compile(r"subgroup(\d+)")
_DP4A = 61  # the first compute capability that has dp4a
_DOTS = re.compile(r"dots_(\w+)")
_ARCH = re.compile(r"sm_(\d+)")


@dataclass(frozen=True)
class GpuLimits:
    """The limits that a GPU, or a CPU behind OpenCL, sets to kernels.

    `max_threads` is the largest number of work-items in a group. `lanes` is the number of float32 lanes of a vector
    that is worth using. `subgroups` are the subgroup sizes that a kernel may require; without any there are no subgroup
    functions. `fp16` says whether the device computes and stores half precision. `arch` is the architecture of a CUDA
    device ("sm_87"), which determines its instructions; it is empty if it is not known. `dots` says by which extension
    an OpenCL device multiplies four bytes at once: "khr" (cl_khr_integer_dot_product), "arm"
    (cl_arm_integer_dot_product_accumulate_int8), or none if it is empty.
    """

    kind: str
    family: str
    max_threads: int
    local_memory_bytes: int
    lanes: int
    subgroups: tuple[int, ...] = ()
    fp16: bool = False
    arch: str = ""
    dots: str = ""

    @property
    def capability(self) -> int:
        """Return CUDA's compute capability times ten, e.g. 87 for "sm_87", or 0 if it is not known or not CUDA."""
        return int(found[1]) if (found := _ARCH.match(self.arch)) else 0

    @property
    def multiplies_bytes(self) -> bool:
        """Tell whether the device has an instruction for products of bytes. Without one, integers take longer than
        float32."""
        return bool(self.dots) or self.capability >= _DP4A

    @property
    def copies_asynchronously(self) -> bool:
        """Tell whether items can copy into local memory without waiting: by cp.async, from compute capability 8.0 on.

        Source: the PTX ISA.
        """
        return self.shares_memory and self.capability >= 80

    @property
    def sums(self) -> int:
        """Return how many float32 values per work-item accumulators may take."""
        if self.family == "cpu":  # the CPU templates use as many vectors
            return self.lanes * (28 if self.lanes >= 16 else 12)
        return _SUMS[self.family]

    @property
    def max_unrolled(self) -> int:
        """Return how many vector multiply-adds an unrolled body may have.

        Longer bodies overflow instruction caches, and a driver's compiler needs seconds for them. A CPU runs short
        bodies as fast, because a loop costs nothing beside a register tile.
        """
        return 16 * self.lanes if self.family == "cpu" else 512

    @property
    def shares_memory(self) -> bool:
        """Tell whether local memory may be worth using. On a CPU it is ordinary memory, and barriers are expensive."""
        return self.local_memory_bytes > 0 and self.family != "cpu"

    def stores(self, dtype: str) -> bool:
        """Tell whether kernels can read and write values of this dtype."""
        return dtype in ("float32", INTEGERS) or (dtype == "float16" and self.fp16)

    @property
    def max_vector(self) -> int:
        """Return how many lanes the widest vector type has. CUDA's loads, and TVM's code for them, end at 128 bits."""
        return 4 if self.kind == "cuda" else 16


def gpu_target(limits: GpuLimits, host: Target | None = None, model: str = "") -> Target:
    """Return the target of a device with these limits.

    `host` is the target of the host code; by default it is TVM's default for this machine. Raises ValueError for an
    unknown kind or family.
    """
    if limits.kind not in KINDS or limits.family not in FAMILIES:
        raise ValueError(f"no such GPU: kind {limits.kind!r}, family {limits.family!r}")
    keys = [limits.family, limits.kind, "gpu", f"lanes{limits.lanes}"]
    keys += [f"subgroup{size}" for size in limits.subgroups] + (["fp16"] if limits.fp16 else [])
    keys += [f"dots_{limits.dots}"] if limits.dots else []
    options: dict[str, object] = {
        "kind": limits.kind,
        "keys": keys,
        "max_num_threads": limits.max_threads,
        "max_threads_per_block": limits.max_threads,
        "max_shared_memory_per_block": limits.local_memory_bytes,
        # On OpenCL any number but 1 makes TVM put barriers into divergent flow when it reduces across threads.
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
    """Return the limits that `gpu_target` put into a target, or None if the target is not of a GPU.

    For a GPU target that was made in another way they are TVM's attributes, vectors of 4 lanes, and the family "other",
    or "nvidia" for CUDA.
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
        dots=next((found[1] for found in map(_DOTS.fullmatch, keys) if found), ""),
    )


def gpu_limits_of(target: Target) -> GpuLimits:
    """Return the limits of a target that is known to be of a GPU."""
    limits = gpu_limits(target)
    assert limits is not None
    return limits


def _numbers(pattern: re.Pattern[str], keys: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(found[1]) for found in map(pattern.fullmatch, keys) if found)
