"""Compilers that a machine may lack: a test that needs one is skipped with what to install."""

from __future__ import annotations

import re
import subprocess

import pytest

from tuner.devices.profiles import Profile, profile_named
from tuner.errors import BadInput
from tuner.measure.offline import Compiler, compilers_of
from tuner.measure.offline.clang import find_clang
from tuner.measure.offline.nvrtc import Nvrtc


def compilers_or_skip(profile: Profile) -> list[Compiler]:
    try:
        return compilers_of(profile)
    except BadInput as error:
        pytest.skip(str(error))


def compiler_or_skip(profile: str, name: str) -> Compiler:
    return next(compiler for compiler in compilers_or_skip(profile_named(profile)) if compiler.name == name)


def multiplications(source: str, cuda: Profile | None = None) -> list[int]:
    """Of floating-point values (a vector's is one in OpenCL C), in every basic block that has any, as a compiler says:
    NVRTC in PTX, clang in LLVM's IR, where sums with products are one operation."""
    if cuda is not None:
        compiler = compiler_or_skip(cuda.name, "nvrtc")
        assert isinstance(compiler, Nvrtc)
        blocks = re.split(r"^\$L.*:", compiler.ptx(source), flags=re.MULTILINE)
        counts = [len(re.findall(r"\s(?:fma\.rn|mul)\.f32\s|\swmma\.mma\.", block)) for block in blocks]
    else:
        try:
            command = [find_clang(), "-x", "cl", "-cl-std=CL1.2", "-target", "spir64", "-w", "-S", "-emit-llvm"]
        except BadInput as error:
            pytest.skip(str(error))
        command += ["-Xclang", "-finclude-default-header", "-o", "-", "-"]
        code = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
        blocks = re.split(r"^\d+:", code, flags=re.MULTILINE)
        counts = [len(re.findall(r"= (?:fmul |.*call .*@llvm\.fmuladd)", block)) for block in blocks]
    return [count for count in counts if count]
