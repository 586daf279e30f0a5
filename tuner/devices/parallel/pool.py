"""Compiling the pool, and pointing compiled kernels at it."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

from tuner.devices.compiled import cache_folder, digest, made_whole
from tuner.errors import BadInput

SOURCE = Path(__file__).with_name("pool.c")
# The name says what it was made from: two with one name are the same.
PATTERN = "parallel-*.so"
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-Wl,-z,noexecstack")
_LAUNCHER = "__TVMBackendParallelLaunch"


class Pool:
    """A loaded pool. Use `open_pool`: one process needs one of each."""

    def __init__(self, library: Path) -> None:
        """Raises OSError if it cannot be loaded here."""
        self._library = ctypes.CDLL(str(library))
        self._launch = ctypes.cast(self._library.edgetune_launch, ctypes.c_void_p).value

    def threads(self, count: int) -> int:
        """Share the calling thread's loops between `count` threads, itself included, starting those that are missing;
        how many there are now."""
        return int(self._library.edgetune_threads(count))

    def enter(self, count: int, cpu: int) -> None:
        """A call of a network begins: as `threads`, and the calling thread stays on the core `cpu` (-1: anywhere) until
        `leave`. Calls may be inside others."""
        self._library.edgetune_enter(count, cpu)

    def leave(self) -> None:
        """The call ends: the thread goes back to the cores that it was on."""
        self._library.edgetune_leave()

    def rest(self) -> None:
        """Let idle threads sleep now, until `rise` or the next loop: they otherwise wait for it on their cores."""
        self._library.edgetune_rest()

    def rise(self) -> None:
        """Call resting threads back to their cores."""
        self._library.edgetune_rise()

    def serve(self, library: Path | str) -> None:
        """Let the kernels of a library that TVM has loaded run their parallel loops here."""
        loaded = ctypes.CDLL(str(library))
        with contextlib.suppress(ValueError):  # it has no parallel loop
            ctypes.c_void_p.in_dll(loaded, _LAUNCHER).value = self._launch
        _ctypes.dlclose(loaded._handle)  # TVM keeps it open, as long as it is needed


_POOLS: dict[str, Pool] = {}


def open_pool(library: Path) -> Pool | None:
    """The pool in a file, which this process may have opened under another path; None where it cannot be loaded, as one
    that was made for another system."""
    if library.name not in _POOLS:
        try:
            _POOLS[library.name] = Pool(library)
        except OSError:
            return None
    return _POOLS[library.name]


def open_pools() -> list[Pool]:
    """Those that this process has opened."""
    return list(_POOLS.values())


def pool_library() -> Path | None:
    """The compiled pool, compiled now if it has not been (0.2 s); None where there is no C compiler, or nowhere to keep
    it: kernels then use TVM's pool."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    try:
        return _compiled(compiler, cache_folder())
    except (OSError, BadInput, subprocess.CalledProcessError):
        return None


def _compiled(compiler: str, folder: Path) -> Path:
    made_from = (platform.machine(), str(platform.libc_ver()), str(_FLAGS))
    name = digest([*(part.encode() for part in made_from), SOURCE.read_bytes()])
    library = folder / PATTERN.replace("*", name)
    if not library.exists():
        with made_whole(library) as made:
            command = [compiler, *_FLAGS, "-o", str(made), str(SOURCE)]
            subprocess.run(command, capture_output=True, check=True)
    return library
