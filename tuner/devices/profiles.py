"""Describes edge devices that kernels can be compiled and checked for where they are not here. Start at
`profile_named`.

A profile holds what public documentation says, and None where it does not say or boards differ. A real board's own
answers replace it. The local memory of a CUDA device is what a kernel may declare statically.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from templates.gpu.limits import GpuLimits, gpu_target
from tuner.devices.base import Device
from tuner.devices.cpu.host import family
from tuner.devices.keys import device_key, flush_every
from tuner.errors import BadInput
from tuning_db.record import DeviceKey


@dataclass(frozen=True)
class Profile:
    """A device that kernels can be compiled for without having it. `title` is for a person. `reported` is the name that
    the driver gives the device. `architecture` is such as "gen9" or "sm_53". `host` has the LLVM triple and the CPU of
    the host part. `extensions` are those of OpenCL that kernels may use. `ocloc` is what Intel's offline compiler calls
    the device. `aliases` are other names that the profile is known by."""

    name: str
    title: str
    reported: str
    architecture: str
    limits: GpuLimits
    host: tuple[str, str]
    compute_units: int | None = None
    clock_mhz: int | None = None
    extensions: tuple[str, ...] = ()
    ocloc: str | None = None
    aliases: tuple[str, ...] = ()

    def target(self) -> Target:
        """Return TVM's target, with the limits that templates read and the board's host."""
        triple, cpu = self.host
        host = Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu})
        return gpu_target(self.limits, host, self.name)

    def key(self) -> DeviceKey:
        """Return the same key as the real device's, as far as that is known."""
        more: dict[str, int | str] = {} if self.clock_mhz is None else {"clock_mhz": self.clock_mhz}
        return device_key(self.limits, self.reported, self.compute_units, arch=self.architecture, **more)

    @property
    def flush_every(self) -> int:
        """Return after how many launches the device's queues are flushed; 0 leaves that to the driver."""
        return flush_every(self.limits.family)

    @property
    def compilers(self) -> tuple[str, ...]:
        """Return the names of the offline compilers that check the device's kernels."""
        if self.limits.kind == "cuda":
            return ("nvrtc",)
        return ("clang", "ocloc") if self.ocloc else ("clang",)


_INTEL_EXTENSIONS = (
    "cl_khr_fp16",
    "cl_khr_subgroups",
    "cl_intel_subgroups",
    "cl_intel_subgroups_short",
    "cl_intel_required_subgroup_size",
)
_AARCH64 = "aarch64-linux-gnu"
_X86_64 = "x86_64-linux-gnu"


def _intel(max_threads: int, dots: str = "") -> GpuLimits:
    return GpuLimits("opencl", "intel", max_threads, 64 << 10, 4, (8, 16, 32), fp16=True, dots=dots)


def _mali(max_threads: int, dots: str = "") -> GpuLimits:
    # 32 KiB are reported, and lie in main memory: Mali has no local memory of its own.
    return GpuLimits("opencl", "mali", max_threads, 32 << 10, 4, fp16=True, dots=dots)


def cuda_limits(arch: str) -> GpuLimits:
    """Return the limits that all CUDA devices of an architecture such as "sm_87" have."""
    return GpuLimits("cuda", "nvidia", 1024, 48 << 10, 4, (32,), fp16=True, arch=arch)


# Intel: "The Compute Architecture of Intel Processor Graphics Gen9" (64 KiB of local memory, SIMD 8, 16, 32) and ARK
# (execution units); work-items as drivers report them: 256 on Apollo Lake (clinfo in intel/compute-runtime #62), 512 on
# Iris Xe (ggml-org/llama.cpp #5467), with dot products of bytes (intel/compute-runtime #482). DeepLens: L. Wang et al.,
# ICPP 2019 (HD 505; its clock depends on the chip).
# Mali: work-items 256 on Midgard (clinfo of a T628 in plaidml/plaidml #227), 384 on the G52 (clinfo in
# ARM-software/ComputeLibrary #999), 1024 on Valhall ("Arm Mali GPU OpenCL Developer Guide"); T860 MP4 at 800 MHz is the
# RK3399's (Rockchip's data sheet), G610 MP4 at 1 GHz the RK3588's, with dot products of bytes (clinfo in
# hominoids/sgminer-arm #12).
# Nvidia: "CUDA C++ Programming Guide", technical specifications per compute capability, and the modules' data sheets:
# Jetson Nano 128 cores at 921 MHz, AGX Xavier 512 at 1377 MHz, AGX Orin 64GB 2048 at 1.3 GHz; H100 SXM and H200 132
# multiprocessors.
_PROFILES = (
    Profile(
        "intel-hd505",
        "AWS DeepLens (Intel HD Graphics 505)",
        "Intel(R) HD Graphics 505",
        "gen9",
        _intel(256),
        (_X86_64, "goldmont"),
        18,
        extensions=_INTEL_EXTENSIONS,
        ocloc="bxt",
        aliases=("deeplens",),
    ),
    Profile(
        "intel-xe",
        "Intel Iris Xe Graphics (Tiger Lake)",
        "Intel(R) Iris(R) Xe Graphics",
        "xe-lp",
        _intel(512, "khr"),
        (_X86_64, "tigerlake"),
        extensions=(*_INTEL_EXTENSIONS, "cl_khr_integer_dot_product"),
        ocloc="tgllp",
    ),
    Profile(
        "mali-t860",
        "Acer aiSage (Mali-T860 MP4)",
        "Mali-T860",
        "midgard",
        _mali(256),
        (_AARCH64, "cortex-a72"),
        4,
        800,
        extensions=("cl_khr_fp16",),
        aliases=("aisage",),
    ),
    Profile(
        "mali-g52",
        "Mali-G52",
        "Mali-G52",
        "bifrost",
        _mali(384),
        (_AARCH64, "cortex-a53"),
        extensions=("cl_khr_fp16",),
    ),
    Profile(
        "mali-g610",
        "Mali-G610 MP4 (RK3588)",
        "Mali-G610",
        "valhall",
        _mali(1024, "arm"),
        (_AARCH64, "cortex-a76"),
        4,
        1000,
        extensions=("cl_khr_fp16", "cl_arm_integer_dot_product_accumulate_int8"),
    ),
    Profile(
        "jetson-nano",
        "Nvidia Jetson Nano (Tegra X1)",
        "NVIDIA Tegra X1",
        "sm_53",
        cuda_limits("sm_53"),
        (_AARCH64, "cortex-a57"),
        1,
        921,
    ),
    Profile(
        "jetson-xavier",
        "Nvidia Jetson AGX Xavier",
        "Xavier",
        "sm_72",
        cuda_limits("sm_72"),
        (_AARCH64, "carmel"),
        8,
        1377,
    ),
    Profile(
        "jetson-orin",
        "Nvidia Jetson AGX Orin 64GB",
        "Orin",
        "sm_87",
        cuda_limits("sm_87"),
        (_AARCH64, "cortex-a78ae"),
        16,
        1300,
    ),
    Profile(
        "h100", "Nvidia H100 SXM", "NVIDIA H100 80GB HBM3", "sm_90a", cuda_limits("sm_90a"), (_X86_64, "x86-64-v3"), 132
    ),
    Profile("h200", "Nvidia H200", "NVIDIA H200", "sm_90a", cuda_limits("sm_90a"), (_X86_64, "x86-64-v3"), 132),
)


def all_profiles() -> tuple[Profile, ...]:
    """Return the devices that kernels can be compiled for without having one."""
    return _PROFILES


def host_of_profile(profile: Profile) -> Device:
    """Return one thread of the CPU of the profile's board as a device, which is called NAME:cpu."""
    triple, cpu = profile.host
    target = Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu, "num-cores": 1})
    key = DeviceKey("cpu", family(triple.partition("-")[0], target), cpu, {"threads": 1})
    return Device(f"{profile.name}:cpu", target, key, threads=1, cache_bytes=0)


def profile_named(name: str) -> Profile:
    """Return the profile of a name or an alias, in any case. Raises BadInput, naming the known ones, if
    there is none."""
    wanted = name.lower()
    found = next((p for p in _PROFILES if wanted == p.name or wanted in p.aliases), None)
    if found is None:
        raise BadInput(f"unknown profile {name!r}: give one of {', '.join(p.name for p in _PROFILES)}")
    return found
