"""Checks OpenCL C with clang's spir64 target: syntax, types, address spaces, and the extensions that a device has."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from templates.gpu.opencl_text import build_options
from tuner.errors import BadInput, CompileError, first_error
from tuner.measure.offline.contract import Resources

_NEWEST, _OLDEST = 30, 14
_HEADER_NEEDS = ("__opencl_c_images", "__opencl_c_read_write_images")  # with OpenCL C 3.0
# Builtins of OpenCL have mangled names. A function with a plain name is one that nobody defines.
_UNDEFINED = re.compile(r"^declare [^@]*@(?!_Z|llvm\.|printf\b)([\w.]+)", re.MULTILINE)


def find_clang() -> str:
    """Return the path of clang or, if only versioned ones are installed, of the newest. Raises BadInput if there is
    none."""
    names = ["clang", *(f"clang-{version}" for version in range(_NEWEST, _OLDEST - 1, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise BadInput("clang is not installed, which checks OpenCL C: apt-get install clang")
    return found


class Clang:
    """Compiles for a device with these OpenCL extensions and no others. It knows no device's registers."""

    name = "clang"

    def __init__(self, extensions: Sequence[str]) -> None:
        """Raises BadInput if clang is missing."""
        enabled = ",".join(["-all", *(f"+{name}" for name in (*extensions, *_HEADER_NEEDS))])
        self._command = [find_clang(), "-x", "cl", "-cl-std=CL1.2", "-target", "spir64"]
        self._command += ["-Xclang", "-finclude-default-header", "-Xclang", f"-cl-ext={enabled}", "-w"]
        if "cl_intel_subgroups" in extensions:  # the short form of the header lacks Intel's functions
            self._command.append("-cl-no-stdinc")
        self._command += ["-S", "-emit-llvm", "-o", "-"]

    def compile(self, source: str) -> Mapping[str, Resources]:
        """See contract.Compiler.compile; the mapping is empty."""
        done = subprocess.run(
            [*self._command, *build_options(source), "-"],
            input=source,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise CompileError(f"clang: {first_error(done.stderr)}")
        undefined = _UNDEFINED.search(done.stdout)
        if undefined is not None:
            raise CompileError(f"clang: function {undefined[1]} is declared and never defined")
        return {}
