"""Offline compilers of OpenCL C that tests use where they are installed: clang's spir64 target and Intel's ocloc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def _tool(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def _compile(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def compile_with_clang(source: str, directory: Path, extensions: Sequence[str] = (), intel: bool = False) -> None:
    """Compile for any device with these extensions; `intel`: with the functions of Intel's subgroups declared."""
    (directory / "kernel.cl").write_text(source)
    clang = _tool("clang", *(f"clang-{version}" for version in range(20, 13, -1)))
    allowed = ",".join(["-all", *(f"+{name}" for name in extensions)])
    command = [clang, "-x", "cl", "-cl-std=CL1.2", "-target", "spir64", "-Xclang", "-finclude-default-header"]
    command += ["-Xclang", f"-cl-ext={allowed}", *(["-cl-no-stdinc"] if intel else [])]
    _compile([*command, "-emit-llvm", "-c", "-o", "kernel.bc", "kernel.cl"], directory)


def compile_with_ocloc(source: str, directory: Path, device: str) -> None:
    """Compile to a device binary for one of Intel's GPUs ("skl": Gen9, "tgllp": Xe)."""
    (directory / "kernel.cl").write_text(source)
    _compile([_tool("ocloc"), "compile", "-file", "kernel.cl", "-device", device], directory)
