"""Compile and link an exported network: a shared and a static library that export nothing but its own names. Start at
`link`.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from tuner.errors import BadInput

_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-ffunction-sections", "-fno-exceptions", "-pthread")
_RUNTIME = ("network.h", "network.inc", "processor.h", "processor.c")
_POOL = ("pool.h", "pool.c")  # of tuner.devices.parallel


@dataclass(frozen=True)
class Toolchain:
    """The paths of a C compiler, an archiver and a tool that changes object files, for one kind of processor."""

    compiler: str
    archiver: str
    objcopy: str


def toolchain_for(machine: str) -> Toolchain:
    """Return the tools for a processor's architecture, such as "x86_64". Raises BadInput naming what to install."""
    own = machine == platform.machine()
    triple = f"{machine}-linux-gnu"
    names = {
        "compiler": ("cc", "gcc", "clang") if own else (f"{triple}-gcc",),
        "archiver": ("ar", "llvm-ar") if own else (f"{triple}-ar", "llvm-ar"),
        "objcopy": ("objcopy", "llvm-objcopy") if own else (f"{triple}-objcopy", "llvm-objcopy"),
    }
    found = {tool: next(filter(None, map(shutil.which, options)), None) for tool, options in names.items()}
    missing = [" or ".join(names[tool]) for tool, path in found.items() if path is None]
    if missing:
        package = "gcc" if own else f"gcc-{triple.replace('_', '-')}"
        raise BadInput(f"a library for {machine} needs {', '.join(missing)} in PATH: apt-get install {package}")
    return Toolchain(**{tool: str(path) for tool, path in found.items()})


@dataclass(frozen=True)
class Code:
    """What a library is made of: the network's C file (`body`), its interface (`header`), and the object file of its
    kernels, if it has any. Its public names begin with `name` and an underscore."""

    name: str
    body: str
    header: str
    kernels: Path | None


def link(code: Code, folder: Path, tools: Toolchain, *, flags: Sequence[str] = ()) -> None:
    """Write lib`name`.so and lib`name`.a to a folder. `flags` are more flags of the compiler.

    Raises BadInput if a tool fails.
    """
    name = code.name
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / f"{name}.c").write_text(code.body)
        (work / f"{name}.h").write_text(code.header)
        _copy_runtime(work)
        objects = [] if code.kernels is None else [str(code.kernels)]
        for source in (f"{name}.c", "processor.c", "pool.c"):
            made = work / Path(source).with_suffix(".o")
            _run([tools.compiler, *_FLAGS, *flags, "-c", "-o", str(made), str(work / source)])
            objects.append(str(made))
        whole = work / "whole.o"
        _run([tools.compiler, "-r", "-nostdlib", "-o", str(whole), *objects])
        _run([tools.objcopy, "--wildcard", f"--keep-global-symbol={name}_*", "--strip-debug", str(whole)])
        archive = folder / f"lib{name}.a"
        archive.unlink(missing_ok=True)
        _run([tools.archiver, "rcsD", str(archive), str(whole)])
        versions = work / "versions"
        versions.write_text(f"{name}_1 {{ global: {name}_*; local: *; }};\n")
        shared = ("-shared", "-pthread", "-Wl,-z,noexecstack", "-Wl,--gc-sections", "-Wl,-s")
        script = f"-Wl,--version-script={versions}"
        _run([tools.compiler, *shared, *flags, script, "-o", str(folder / f"lib{name}.so"), str(whole), "-lm"])


def _copy_runtime(folder: Path) -> None:
    """Copy the C files that are the same for all networks."""
    for place, names in ((files(__package__) / "runtime", _RUNTIME), (files("tuner.devices.parallel"), _POOL)):
        for name in names:
            with as_file(place / name) as path:
                shutil.copyfile(path, folder / name)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise BadInput(f"{Path(command[0]).name} failed: {said[0] if said else f'status {done.returncode}'}")
