"""Checks CUDA with Nvidia's runtime compiler: the same one, with the same options, as compiles what runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.devices.cuda import Nvrtc as Library
from tuner.measure.offline.contract import Resources

_KERNEL = re.compile(
    r"Function properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*\n"
    r".*?Used (\d+) registers(.*)"
)
_SHARED = re.compile(r"(\d+) bytes smem")


class Nvrtc:
    """Compiles for one architecture ("sm_53")."""

    name = "nvrtc"

    def __init__(self, arch: str) -> None:
        """Raises BadInput if no NVRTC here knows the architecture."""
        self._library = Library(arch)

    def compile(self, source: str) -> Mapping[str, Resources]:
        """See contract.Compiler.compile."""
        binary, log = self._library.compile(source)
        return resources(log, len(binary))

    def ptx(self, source: str) -> str:
        """See devices.cuda.Nvrtc.ptx."""
        return self._library.ptx(source)


def resources(log: str, binary_bytes: int) -> dict[str, Resources]:
    """Return what ptxas says of each kernel. `binary_bytes` is the size of all kernels together."""
    found = {}
    for name, frame, spilled, registers, rest in _KERNEL.findall(log):
        shared = _SHARED.search(rest)
        found[name] = Resources(
            registers=int(registers),
            spill_bytes=int(spilled),
            private_bytes=int(frame),
            local_bytes=int(shared[1]) if shared else 0,
            binary_bytes=binary_bytes,
        )
    return found
