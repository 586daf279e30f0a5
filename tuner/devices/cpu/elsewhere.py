"""Describes CPUs that kernels can be compiled for where they are not here. Start at `cpu_elsewhere`.

Numbers of cores and caches are those of public documentation; generic architectures have the commonest ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from tuner.devices.base import Device
from tuner.devices.cpu.host import family
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_ARM64, _X86_64, _RISCV64 = "aarch64-linux-gnu", "x86_64-linux-gnu", "riscv64-unknown-linux-gnu"
_ARM32 = "armv7a-unknown-linux-gnueabihf"  # LLVM takes the second part of a shorter name for a vendor
_RISCV = ("+m", "+a", "+f", "+d", "+c")
_WASM32 = "wasm32-unknown-wasi"
# The vector extension "v" by its parts: where TVM sees it whole it makes loops of vectors without a fixed length, in
# which its pass UnsupportedDtypeLegalize fails.
_RISCV_VECTORS = ("+zve64d", "+zvl128b")


@dataclass(frozen=True)
class CpuElsewhere:
    """A CPU that is not here. `title` is for a person. `triple`, `cpu` and `features` are LLVM's. `threads` is the
    number of its fast cores, and `cache_bytes` the size of its last cache level. `vector_bits` is the size of a vector
    where TVM does not know it. One that is `experimental` is compiled for only where a person asks for that.
    """

    name: str
    title: str
    triple: str
    cpu: str
    threads: int
    cache_bytes: int
    features: tuple[str, ...] = ()
    abi: str = ""
    vector_bits: int = 0
    experimental: bool = False

    @property
    def is_webassembly(self) -> bool:
        """Return whether it is a WebAssembly engine, which has one thread and no GPU."""
        return self.triple.startswith("wasm32-")

    def target(self, threads: int) -> Target:
        """Return TVM's target for functions that use so many threads."""
        options = {"kind": "llvm", "mtriple": self.triple, "mcpu": self.cpu, "num-cores": threads}
        if self.features:
            options["mattr"] = list(self.features)
        if self.abi:
            options["mabi"] = self.abi
        if self.vector_bits:
            options["vector-width"] = self.vector_bits
        return Target(options)


_KNOWN = (
    CpuElsewhere("rpi4", "Raspberry Pi 4 (Cortex-A72)", _ARM64, "cortex-a72", 4, 1 << 20),
    CpuElsewhere("rpi5", "Raspberry Pi 5 (Cortex-A76)", _ARM64, "cortex-a76", 4, 2 << 20),
    CpuElsewhere("rk3399", "RK3399 (two Cortex-A72)", _ARM64, "cortex-a72", 2, 1 << 20),
    CpuElsewhere("rk3588", "RK3588 (four Cortex-A76)", _ARM64, "cortex-a76", 4, 3 << 20),
    CpuElsewhere("jetson-nano", "Nvidia Jetson Nano (Cortex-A57)", _ARM64, "cortex-a57", 4, 2 << 20),
    CpuElsewhere("jetson-xavier", "Nvidia Jetson AGX Xavier (Carmel)", _ARM64, "carmel", 8, 4 << 20),
    CpuElsewhere("jetson-orin", "Nvidia Jetson AGX Orin (Cortex-A78AE)", _ARM64, "cortex-a78", 12, 6 << 20),
    CpuElsewhere("orion-o6", "Radxa Orion O6 (Cortex-A720)", _ARM64, "cortex-a720", 8, 12 << 20),
    CpuElsewhere("deeplens", "AWS DeepLens (Atom x5-E3930)", _X86_64, "goldmont", 2, 2 << 20),
    CpuElsewhere("n100", "Intel N100", _X86_64, "gracemont", 4, 6 << 20),
    CpuElsewhere("zen4", "AMD Zen 4 (AVX512-BF16)", _X86_64, "znver4", 8, 32 << 20),
    CpuElsewhere("aarch64", "any ARMv8-A with NEON", _ARM64, "generic", 4, 1 << 20, ("+neon",)),
    CpuElsewhere("armv7", "any ARMv7-A with NEON", _ARM32, "generic", 4, 1 << 20, ("+neon", "+vfp4")),
    CpuElsewhere("riscv64", "any RV64GC", _RISCV64, "generic-rv64", 4, 1 << 20, _RISCV, "lp64d"),
    CpuElsewhere(
        "riscv64v", "any RV64GC with vectors", _RISCV64, "generic-rv64", 4, 1 << 20, (*_RISCV, *_RISCV_VECTORS), "lp64d"
    ),
    CpuElsewhere("x86-64-v2", "any x86-64 with SSE4.2", _X86_64, "x86-64-v2", 2, 4 << 20),
    CpuElsewhere("x86-64-v3", "any x86-64 with AVX2", _X86_64, "x86-64-v3", 4, 8 << 20),
    CpuElsewhere("x86-64-v4", "any x86-64 with AVX-512", _X86_64, "x86-64-v4", 4, 16 << 20),
    CpuElsewhere(
        "wasm32",
        "any WebAssembly engine with SIMD",
        _WASM32,
        "generic",
        1,
        1 << 20,
        ("+simd128", "+bulk-memory"),
        vector_bits=128,
        experimental=True,
    ),
)


def cpus_elsewhere() -> tuple[CpuElsewhere, ...]:
    """Return all CPUs that can be compiled for by name."""
    return _KNOWN


def cpu_elsewhere(name: str, threads: int | None = None) -> Device:
    """Return a device for a CPU that is not here, with so many threads (default: its fast cores).

    Raises BadInput for a name that is not known, and for more threads than it can have.
    """
    found = next((cpu for cpu in _KNOWN if cpu.name == name), None)
    if found is None:
        raise BadInput(f"--target {name}: is not known; choose among {', '.join(cpu.name for cpu in _KNOWN)}")
    count = threads or found.threads
    if found.is_webassembly and count > 1:
        raise BadInput(f"--threads {count}: kernels for {name} have one thread; leave the option out")
    target = found.target(count)
    attrs = {"threads": count, "last_level_cache_bytes": found.cache_bytes}
    machine = found.triple.partition("-")[0]
    return Device("cpu", target, DeviceKey("cpu", family(machine, target), found.cpu, attrs), count, found.cache_bytes)
