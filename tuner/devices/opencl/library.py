"""Compiles our OpenCL runtime library for TVM at first use, and loads it. Start at `load`; `autoload` is for TVM.

The library derives from C++ classes of TVM's wheel, so a compiled copy belongs to exact versions of it. The copy lies
in the user's cache under a name that says what it was compiled from. TVM calls `autoload` from its own import, through
the entry point group "tvm.backends": nothing here may import what imports TVM, or open a driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm_ffi

from tuner.devices.compiled import cache_folder, digest, made_whole
from tuner.errors import BadInput

SOURCES = Path(__file__).with_name("runtime")
_COMPILERS = ("g++", "c++", "clang++")
# With -O1 the library compiles a third faster than with -O2 and is as fast: the time of a launch is the driver's.
_FLAGS = ("-O1", "-std=c++17", "-fPIC", "-shared", "-Wl,-z,noexecstack")
_DISTRIBUTIONS = ("apache-tvm", "apache-tvm-ffi")
_PREFIX = "opencl-runtime-"
_LOADED = "edgetune.opencl.device_info"
_ANY_RUNTIME = "device_api.opencl"


def find_compiler() -> str | None:
    """Return the path of a C++ compiler, None if there is none: $CXX, else the first of the usual names
    that is there."""
    named = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, (named,) if named else _COMPILERS)), None)


def _source_files() -> list[Path]:
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in (".cc", ".h"))


def _made_from() -> Iterator[bytes]:
    for name in _DISTRIBUTIONS:
        yield metadata.version(name).encode()
    yield f"{platform.machine()} {platform.libc_ver()} {_FLAGS}".encode()
    for path in _source_files():
        yield path.relative_to(SOURCES).as_posix().encode()
        yield path.read_bytes()


def _compiler_identity(compiler: str) -> Iterator[bytes]:
    found = Path(compiler).resolve()
    status = found.stat()
    yield f"{found} {status.st_size} {status.st_mtime_ns}".encode()


def library_path(compiler: str | None) -> Path | None:
    """Return where the library for this TVM, compiled from these sources by `compiler`, is or will be. Without a
    compiler, return any copy that was made from the same versions and sources, or None if there is none."""
    folder, stem = cache_folder(), _PREFIX + digest(_made_from())
    if compiler is None:
        return next(iter(sorted(folder.glob(f"{stem}-*.so"))), None)
    return folder / f"{stem}-{digest(_compiler_identity(compiler))}.so"


def compile_library(compiler: str, library: Path, flags: Sequence[str] = ()) -> None:
    """Compile the library to `library`, which appears only when it is whole. Raises BadInput if that fails."""
    import tvm

    packages = (Path(str(package.__file__)).parent for package in (tvm, tvm_ffi))
    includes = [SOURCES, SOURCES / "shim", *(package / "include" for package in packages)]
    try:
        with made_whole(library) as made:
            command = [compiler, *_FLAGS, *flags, *(f"-I{path}" for path in includes)]
            command += [str(SOURCES / "runtime.cc"), "-o", str(made), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
                reason = errors[0].strip() if errors else f"status {done.returncode}"
                raise BadInput(f"the OpenCL runtime cannot be compiled: {compiler}: {reason}")
    except OSError as error:
        raise BadInput(f"the OpenCL runtime cannot be compiled to {library}: {error.strerror}") from error


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{_PREFIX}lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written ({error.strerror}): set XDG_CACHE_HOME") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _has(function: str) -> bool:
    return tvm_ffi.get_global_func(function, allow_missing=True) is not None


def _intel_cpu_runtime() -> Path:
    """Return the path of Intel's CPU driver as the wheel intel-opencl-rt installs it. No ICD loader knows of it: the
    wheel's .icd file holds a placeholder."""
    return Path(sys.prefix) / "lib/libintelocl.so"


def _open(library: Path) -> None:
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        raise BadInput(f"the OpenCL runtime cannot be loaded: {error}: remove {library}") from error
    if _intel_cpu_runtime().exists():
        tvm_ffi.get_global_func("edgetune.opencl.add_driver")(str(_intel_cpu_runtime()))


def load() -> None:
    """Make OpenCL a device of TVM: compile our runtime library if that has not been done (some seconds) and load it.

    No driver is opened yet. More calls do nothing. Raises BadInput, in one line, if there is no C++ compiler or it
    fails, if the cache cannot be written, or if this TVM has another OpenCL runtime.
    """
    import tvm  # noqa: F401  our library needs TVM's to be there

    if _has(_LOADED):
        return
    if _has(_ANY_RUNTIME):
        raise BadInput(
            "this TVM has an OpenCL runtime of its own, and only one can be loaded: install apache-tvm's wheel"
        )
    compiler = find_compiler()
    library = library_path(compiler)
    if library is None:
        raise BadInput("OpenCL needs a C++ compiler once, and none was found: apt-get install g++ (or set CXX)")
    if compiler is not None and not library.exists():
        with _lock(library.parent):
            if not library.exists():
                compile_library(compiler, library)
    _open(library)


def call(name: str, *args: Any) -> Any:
    """Call the library's function "edgetune.opencl.`name`", loading it if need be."""
    load()
    return tvm_ffi.get_global_func(f"edgetune.opencl.{name}")(*args)


def autoload() -> None:
    """Load the library if it has been compiled before; never compile it, never open a driver, never fail."""
    with contextlib.suppress(BadInput, OSError, metadata.PackageNotFoundError):
        if not _has(_ANY_RUNTIME):
            library = library_path(find_compiler())
            if library is not None and library.exists():
                _open(library)
