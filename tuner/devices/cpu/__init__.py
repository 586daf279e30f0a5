"""Makes the host's CPU a device, "cpu", and describes the CPUs of boards. Start at `host.open_cpu`."""

from tuner.devices.cpu.elsewhere import CpuElsewhere, cpu_elsewhere, cpus_elsewhere
from tuner.devices.cpu.host import family, hidden_features, host_target, open_cpu
from tuner.devices.cpu.kind import CpuKind

__all__ = [
    "KIND",
    "CpuElsewhere",
    "CpuKind",
    "cpu_elsewhere",
    "cpus_elsewhere",
    "family",
    "hidden_features",
    "host_target",
    "open_cpu",
]

KIND = CpuKind()
