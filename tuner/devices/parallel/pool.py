"""Compiles the thread pool, and points compiled kernels at it. Start at `pool_library`."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from tvm_ffi import libinfo

from board_agent.pool import Pool
from tuner.devices.compiled import cache_folder, digest, made_whole
from tuner.errors import BadInput

SOURCES = tuple(Path(__file__).with_name(name) for name in ("pool.h", "pool.c", "stage.c"))
# The name says what a library was made from: two libraries with one name are the same.
PATTERN = "parallel-*.so"
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-Wl,-z,noexecstack")
_LIBRARIES = ("-ldl",)  # which older systems need


_POOLS: dict[str, Pool] = {}


def open_pool(library: Path) -> Pool | None:
    """Return the pool in a file, which this process may have opened under another path. Return None where it cannot be
    loaded, for instance because it was made for another system."""
    if library.name not in _POOLS:
        try:
            _POOLS[library.name] = Pool(library)
        except OSError:
            return None
    return _POOLS[library.name]


def open_pools() -> list[Pool]:
    """Return the pools that this process has opened."""
    return list(_POOLS.values())


def pool_library(machine: str | None = None) -> Path | None:
    """Return the compiled pool for an architecture (default: this machine's), which is compiled now if it has not been
    (0.2 s). Return None where there is no C compiler for it, or nowhere to keep it: kernels then use TVM's pool."""
    machine = machine or platform.machine()
    names = _COMPILERS if machine == platform.machine() else (f"{machine}-linux-gnu-gcc",)
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return None
    try:
        return _compiled(compiler, machine, cache_folder())
    except (OSError, BadInput, subprocess.CalledProcessError):
        return None


def _compiled(compiler: str, machine: str, folder: Path) -> Path:
    made_from = (machine, str(platform.libc_ver()), str(_FLAGS), metadata.version("apache-tvm-ffi"))
    name = digest([*(part.encode() for part in made_from), *(source.read_bytes() for source in SOURCES)])
    library = folder / PATTERN.replace("*", name)
    if not library.exists():
        with made_whole(library) as made:
            includes = dict.fromkeys((libinfo.find_include_path(), libinfo.find_dlpack_include_path()))
            sources = [str(source) for source in SOURCES if source.suffix == ".c"]
            command = [compiler, *_FLAGS, *(f"-I{path}" for path in includes), "-o", str(made), *sources, *_LIBRARIES]
            subprocess.run(command, capture_output=True, check=True)
    return library
