"""Compile and link an exported network: a shared and a static library that export nothing but its own names. Start at
`link`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tuner.errors import BadInput

_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-ffunction-sections", "-fno-exceptions", "-pthread", "-D_FILE_OFFSET_BITS=64")
_HEADERS = ("network.h", "network.inc", "pages.h", "pool.h", "processor.h")
_RUNTIME = ("pages.c", "pool.c", "processor.c")
_DEVICE = ("device.h", "driver.h", "driver.c")  # and two files of the kind of device

_API = 24  # of Android 7, the oldest whose C library has all that is called
_NDK = "ANDROID_NDK_HOME"  # the variable that says where Android's development kit is
_LARGEST_PAGE = 16384  # bytes; Android 15 has such pages

Libc = Literal["gnu", "musl", "bionic"]  # the C library of the system that an export is for; bionic is Android's
System = Libc | Literal["wasi"]  # which WebAssembly modules have


@dataclass(frozen=True)
class Toolchain:
    """The commands of a C compiler, an archiver and a tool that changes object files, for one kind of processor.
    `shared` are flags of shared libraries."""

    compiler: tuple[str, ...]
    archiver: tuple[str, ...]
    objcopy: tuple[str, ...]
    shared: tuple[str, ...] = ()


def own_libc() -> Libc:
    """Return the C library of this system."""
    return "gnu" if platform.libc_ver()[0] == "glibc" else "musl"


def toolchain_for(machine: str, libc: Libc = "gnu") -> Toolchain:
    """Return the tools for a processor's architecture, such as "x86_64", and a C library.

    They are this machine's own, those of a cross compiler, zig's, or those of Android's development kit. Raises
    BadInput naming what to install.
    """
    if libc == "bionic":
        return _android(machine)
    own = machine == platform.machine() and libc == own_libc()
    system = _system(machine, libc)
    prefix = "" if own else f"{system}-"
    compilers = ("cc", "gcc", "clang") if own else (f"{prefix}gcc",)
    options: dict[str, list[tuple[str, ...]]] = {
        "compiler": [(name,) for name in compilers],
        "archiver": [(f"{prefix}ar",), ("llvm-ar",)],
        "objcopy": [(f"{prefix}objcopy",), ("llvm-objcopy",)],
    }
    if not own and (zig := zig_command()) is not None:
        options["compiler"].append((*zig, "cc", "-target", system))
        options["archiver"].append((*zig, "ar"))
    found = {tool: next(filter(_exists, commands), None) for tool, commands in options.items()}
    missing = [" or ".join(command[0] for command in options[tool]) for tool, path in found.items() if path is None]
    if missing:
        remedy = "apt-get install gcc" if own else "pip install ziglang, and apt-get install llvm"
        raise BadInput(f"a library for {machine} ({libc}) needs {', '.join(missing)} in PATH: {remedy}")
    return Toolchain(**{tool: command for tool, command in found.items() if command})


def _android(machine: str) -> Toolchain:
    """Return the tools of Android's development kit (NDK), which is where `ANDROID_NDK_HOME` says or in PATH."""
    if machine not in ("aarch64", "x86_64"):
        raise BadInput(f"--libc bionic: libraries for Android are made for aarch64 and x86-64, not for {machine}")
    kit = os.environ.get(_NDK)
    bins = sorted(Path(kit).glob("toolchains/llvm/prebuilt/*/bin")) if kit else []
    path = os.pathsep.join([*map(str, bins), os.environ.get("PATH", "")])
    names = {"compiler": f"{machine}-linux-android{_API}-clang", "archiver": "llvm-ar", "objcopy": "llvm-objcopy"}
    found = {tool: shutil.which(name, path=path) for tool, name in names.items()}
    if missing := [names[tool] for tool, command in found.items() if command is None]:
        where = f"{_NDK}={kit}" if kit else "PATH"
        raise BadInput(
            f"a library for Android needs {', '.join(missing)}, which {where} lacks: "
            f"install Android's NDK and set {_NDK} to its folder"
        )
    tools = {tool: (command,) for tool, command in found.items() if command is not None}
    return Toolchain(**tools, shared=(f"-Wl,-z,max-page-size={_LARGEST_PAGE}",))


def _system(machine: str, libc: Libc) -> str:
    """Return a system's name, as GNU and zig write it."""
    if machine.startswith("arm"):
        return f"arm-linux-{libc}eabihf"
    return f"{machine}-linux-{libc}"


def zig_command() -> tuple[str, ...] | None:
    """Return the command of zig, which is in PATH or in the Python package ziglang."""
    if shutil.which("zig"):
        return ("zig",)
    return (sys.executable, "-m", "ziglang") if find_spec("ziglang") is not None else None


def _exists(command: tuple[str, ...]) -> bool:
    return shutil.which(command[0]) is not None


@dataclass(frozen=True)
class Code:
    """What a library is made of: the network's C file (`body`), its interface (`header`), and the object file of its
    kernels, if it has any. Its public names begin with `name` and an underscore. `device` is the kind of device beside
    the host that it has kernels for: "opencl", "cuda" or None."""

    name: str
    body: str
    header: str
    kernels: Path | None
    device: str | None = None


def link(code: Code, folder: Path, tools: Toolchain, *, flags: Sequence[str] = ()) -> None:
    """Write lib`name`.so and lib`name`.a to a folder. `flags` are more flags of the compiler.

    Raises BadInput if a tool fails.
    """
    name = code.name
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        driver = () if code.device is None else (*_DEVICE, f"{code.device}_driver.h", f"{code.device}.c")
        objects = compile_all(code, work, [*tools.compiler, *_FLAGS, *flags], (*_RUNTIME, *driver))
        whole = work / "whole.o"
        run_tool([*tools.compiler, "-r", "-nostdlib", "-o", str(whole), *objects])
        run_tool([*tools.objcopy, "--wildcard", f"--keep-global-symbol={name}_*", "--strip-debug", str(whole)])
        archive = folder / f"lib{name}.a"
        archive.unlink(missing_ok=True)
        run_tool([*tools.archiver, "rcsD", str(archive), str(whole)])
        versions = work / "versions"
        versions.write_text(f"{name}_1 {{ global: {name}_*; local: *; }};\n")
        # The library stays when it is closed: its threads may still wait for work.
        stays = ("-Wl,-z,noexecstack", "-Wl,-z,nodelete")
        shared = ("-shared", "-pthread", *stays, *tools.shared, "-Wl,--gc-sections", "-Wl,-s")
        script = f"-Wl,--version-script={versions}"
        library = str(folder / f"lib{name}.so")
        run_tool([*tools.compiler, *shared, *flags, script, "-o", library, str(whole), "-lm", "-ldl"])


def compile_all(code: Code, work: Path, command: Sequence[str], runtime: Sequence[str]) -> list[str]:
    """Compile a network's C file, and the files of the `runtime` that is the same for all networks, with the compiler's
    `command`, in the folder `work`. Return the paths of all object files, that of the kernels among them.

    Raises BadInput if the compiler fails.
    """
    (work / f"{code.name}.c").write_text(code.body)
    (work / f"{code.name}.h").write_text(code.header)
    for name in (*_HEADERS, *runtime):
        place = files("tuner.devices.parallel") if name.startswith("pool.") else files(__package__) / "runtime"
        with as_file(place / name) as path:
            shutil.copyfile(path, work / name)
    objects = [] if code.kernels is None else [str(code.kernels)]
    for source in (f"{code.name}.c", *(file for file in runtime if file.endswith(".c"))):
        made = work / Path(source).with_suffix(".o")
        run_tool([*command, "-c", "-o", str(made), str(work / source)])
        objects.append(str(made))
    return objects


def run_tool(command: Sequence[str]) -> None:
    """Run a compiler or another tool. Raises BadInput with the first line that it says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise BadInput(f"{Path(command[0]).name} failed: {said[0] if said else f'status {done.returncode}'}")
