"""Compiles kernels for Intel's GPUs with its offline compiler, and finds out how many registers they spill.

The binary is an ELF file whose section .ze_info, a YAML text, describes every kernel. The log alone tells how many
registers are spilled.
"""

from __future__ import annotations

import itertools
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping

from templates.gpu.opencl_text import build_options
from tuner.errors import BadInput, CompileError, first_error
from tuner.measure.offline.contract import Resources
from tuner.measure.scratch import Scratch

_REGISTER_BYTES = 32  # up to Xe-LP
_SPILLED = re.compile(r"kernel (\w+)\s+compiled SIMD(\d+) allocated (\d+) regs and spilled around (\d+)")
_KERNEL = re.compile(r"^  - name: +(\w+)$", re.MULTILINE)
_SCRATCH = re.compile(r"type: +scratch\n.*\n +size: +(\d+)")


class Ocloc:
    """Compiles for one device, named as ocloc names it ("bxt", "tgllp")."""

    name = "ocloc"

    def __init__(self, device: str) -> None:
        """Raises BadInput if ocloc is missing."""
        path = shutil.which("ocloc")
        if path is None:
            raise BadInput("ocloc is not installed, Intel's offline compiler: apt-get install intel-opencl-icd")
        self._command = [path, "compile", "-device", device, "--format", "zebin", "-exclude_ir", "-file", "kernel.cl"]

    def compile(self, source: str) -> Mapping[str, Resources]:
        """See contract.Compiler.compile."""
        with Scratch() as folder:
            (folder / "kernel.cl").write_text(source)
            options = build_options(source)
            command = [*self._command, "-options", " ".join(options)] if options else self._command
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
            log = done.stdout + done.stderr
            binary = next(folder.glob("*.bin"), None)
            if done.returncode or binary is None:
                raise CompileError(f"ocloc: {first_error(log)}")
            return resources(binary.read_bytes(), log)


def resources(binary: bytes, log: str) -> dict[str, Resources]:
    """Return what each kernel of a device binary takes, with what the compiler's log adds."""
    sections = _sections(binary)
    spilled = {name: int(count) for name, _, _, count in _SPILLED.findall(log)}
    described = sections[".ze_info"].decode().partition("\nkernels_misc_info:")[0]
    starts = [found.start() for found in _KERNEL.finditer(described)] + [len(described)]
    found = {}
    for start, end in itertools.pairwise(starts):
        text = described[start:end]
        name = _KERNEL.match(text)[1]  # type: ignore[index]
        subgroup = _number(text, "simd_size")
        scratch = _SCRATCH.search(text)
        found[name] = Resources(
            registers=_number(text, "grf_count"),
            spill_bytes=spilled.get(name, 0) * _REGISTER_BYTES // subgroup,
            private_bytes=int(scratch[1]) // subgroup if scratch else 0,
            local_bytes=_number(text, "slm_size"),
            subgroup=subgroup,
            binary_bytes=len(sections[f".text.{name}"]),
        )
    return found


def _number(text: str, name: str) -> int:
    """Return a number of a kernel's description, where zero is left out."""
    found = re.search(rf"^ +{name}: +(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _sections(elf: bytes) -> dict[str, bytes]:
    """Return the sections of a 64-bit little-endian ELF file by name."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * i) for i in range(count)]
    names = elf[headers[names_at][4] :]
    return {names[name : names.index(b"\0", name)].decode(): elf[at : at + n] for name, _, _, _, at, n in headers}
