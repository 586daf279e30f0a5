"""Compiles the simulator, `core.c`, on first use and keeps the library. Start at `core`."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tuner.devices.compiled import cache_folder, digest, made_whole
from tuner.errors import BadInput

SOURCE = Path(__file__).with_name("core.c")
_SOURCES = (SOURCE, SOURCE.with_name("lookahead.h"), SOURCE.with_name("tasks.h"))
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-Wl,-z,noexecstack")


class Given(ctypes.Structure):
    """A block as `core.c` takes it. The arrays must stay where they are during the call."""

    _fields_ = (
        ("tasks", ctypes.c_int32),
        ("deps", ctypes.c_int32),
        ("exe", ctypes.c_void_p),
        ("lane", ctypes.c_void_p),
        ("dep", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
    )


class Memory(ctypes.Structure):
    """The bytes that a strategy needs of each of `count` memories, and the bytes that there are."""

    _fields_ = (("count", ctypes.c_int32), ("need", ctypes.c_void_p), ("have", ctypes.c_void_p))


@cache
def core() -> ctypes.CDLL:
    """Return the compiled simulator. Raises BadInput where there is no C compiler, or no folder to keep the library
    in."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise BadInput("the simulator needs a C compiler: apt-get install gcc")
    made_from = (platform.machine(), str(platform.libc_ver()), str(_FLAGS))
    name = digest([*(part.encode() for part in made_from), *(source.read_bytes() for source in _SOURCES)])
    library = cache_folder() / f"simulator-{name}.so"
    try:
        if not library.exists():
            with made_whole(library) as made:
                subprocess.run([compiler, *_FLAGS, "-o", str(made), str(SOURCE)], capture_output=True, check=True)
    except OSError as error:
        raise BadInput(f"the simulator cannot be kept in {library.parent} ({error}): set XDG_CACHE_HOME") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise BadInput(f"{compiler} does not compile the simulator: {said[-1] if said else error}") from error
    return _typed(ctypes.CDLL(str(library)))


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    here, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    signatures = {
        "sim_new": (here, [i32, i32, here]),
        "sim_free": (None, [here]),
        "sim_build": (None, [here, here]),
        "sim_full": (i64, [here]),
        "sim_replace": (None, [here, i32, here, here]),
        "sim_delta": (i64, [here, i64]),
        "sim_too_large": (i32, [here, i32, here, here, here]),
        "sim_look": (None, [here, i32, here, here, here, here, i64, here]),
        "sim_commit": (None, [here]),
        "sim_rollback": (None, [here]),
        "sim_count": (i64, [here, i32]),
        "sim_visited": (i64, [here]),
        "sim_makespan": (i64, [here]),
        "sim_times": (None, [here, i32, here]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
