"""Builds a stand-in for Nvidia's driver that computes on the host, from the sources of a network's kernels. Start at
`emulated_driver`."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tuner.devices.cuda import Nvrtc
from tuner.export.text import literal, literal_lines
from tuner.graph import Program

HERE = Path(__file__).parent
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(')
_SHARED = re.compile(r"__shared__ alignas\(64\)")


def emulated_driver(program: Program, arch: str, folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile the driver to libcuda.so.1 in a folder, and return its path. It knows the machine code of the program's
    kernels for an architecture, and computes what their sources say. `flags` are given to the compiler."""
    sources = dict.fromkeys(str(described["source"]) for described in program.launches.values())
    return driver_for("\n".join(_images(sources, Nvrtc(arch))), folder, flags)


def driver_for(images: str, folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile the driver with a table of images, which is C++ text, and return its path."""
    (folder / "images.cc").write_text(images)
    library = folder / "libcuda.so.1"
    command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{HERE}", "-o", str(library), *flags]
    done = subprocess.run(
        [*command, str(folder / "images.cc"), *map(str, sorted(HERE.glob("*.cc")))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return library


def _images(sources: Iterable[str], compiler: Nvrtc) -> Iterator[str]:
    """Yield the C++ text of the kernels, each source in a namespace of its own, and of the table of all images."""
    yield '#include "cuda.h"'
    rows = []
    for i, source in enumerate(sources):
        binary, _ = compiler.compile(source)
        waits = str("__syncthreads()" in source).lower()
        names = dict.fromkeys(_KERNEL.findall(source))
        yield f"namespace code_{i} {{"
        yield _SHARED.sub("alignas(64) static", source.replace('extern "C" ', ""))
        yield "}"
        yield f"alignas(64) static const unsigned char image_{i}[] ="
        yield f"{literal_lines(binary)};"
        kernels = ", ".join(f"kernel({literal(name)}, code_{i}::{name}, {waits})" for name in names)
        rows.append(f"  {{image_{i}, {len(binary)}, {{{kernels}}}}},")
    yield from ("extern const std::vector<Image> images = {", *rows, "};")


class Emulated:
    """The driver's own reports, in this process."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.emulated_launches.restype = self._library.emulated_branches.restype = ctypes.c_char_p

    def count(self, what: str) -> int:
        """How many objects are `alive` or were `made`, kernels were launched one by one (`plain`), or graphs were
        launched (`replayed`)."""
        return int(getattr(self._library, f"emulated_{what}")())

    def launches(self) -> list[str]:
        """Return what was computed since the last call, in the order in which it was launched: a kernel, its groups and
        its items, each."""
        return self._library.emulated_launches().decode().splitlines()

    def branches(self) -> list[tuple[int, int]]:
        """Return the stream of each launch that was reported since the last call (0 is that of the first), and how many
        others had to be done before it."""
        lines = self._library.emulated_branches().decode().splitlines()
        found = [tuple(map(int, line.split())) for line in lines]
        return [(stream - found[0][0], before) for stream, before in found]
