"""Compiles CUDA to machine code with Nvidia's runtime compiler, a library that needs neither GPU nor driver. Start at
`Nvrtc`.

NVRTC 13 knows compute capability 7.5 and up; NVRTC 12 also knows those of older Jetsons. The newest library here that
knows the architecture is taken.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import BadInput, CompileError, first_error

_INSTALL = "pip install 'edgetune[cuda-offline]'"
_INCLUDED = ("cuda_fp16.h", "crt/mma.h")  # headers that TVM's source includes, of all that come with the library
_TOOLKIT = "/usr/local/cuda"  # where Nvidia's own packages put it
# All that TVM's source takes from two headers. The real headers have thousands of lines and double the time of a
# compilation.
_HEADERS = {
    b"cuda/std/cstdint": b"""
namespace cuda { namespace std {
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
} }""",
    b"cuda/std/type_traits": b"""
namespace cuda { namespace std {
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <class T> struct is_integral; template <class T> struct is_floating_point;
template <class T> struct is_signed; template <class T> struct is_unsigned;
} }""",
}
# TVM's own options without --use_fast_math. That option flushes small numbers to zero, so that they sort as equal. It
# divides less exactly, so that borders of regions fall into the next pixel, and takes the processor's tanh, which has
# 11 bits. No later option brings the right tanh, sin or pow back.
_OPTIONS = (
    "-default-device",  # because TVM's helpers are not marked as the device's
    "--device-int128",
    "-DINFINITY=__builtin_huge_valf()",  # a name of <math.h>, which is the host's
    "--ptxas-options=-v",
    "--ptxas-options=--register-usage-level=10",
    "-w",
)


@dataclass(frozen=True)
class _Installation:
    library: Path
    includes: tuple[Path, ...]


class Nvrtc:
    """Compiles for one architecture ("sm_53")."""

    def __init__(self, arch: str) -> None:
        """Raises BadInput if no NVRTC here knows the architecture."""
        self._library, includes = _find(arch)
        options = [f"--gpu-architecture={arch}", *_OPTIONS, *(f"-I{path}" for path in includes)]
        self._options = _strings([option.encode() for option in options])

    def compile(self, source: str) -> tuple[bytes, str]:
        """Return the machine code, and what ptxas says of it. Raises CompileError."""
        with self._compiled(source) as (program, log):
            return self._text(program, "CUBIN"), log

    def ptx(self, source: str) -> str:
        """Return the instructions before registers are assigned (PTX). They show which of an architecture's
        instructions are used. Raises CompileError."""
        with self._compiled(source) as (program, _):
            return self._text(program, "PTX").decode()

    @contextmanager
    def _compiled(self, source: str) -> Iterator[tuple[ctypes.c_void_p, str]]:
        """Compile, and yield the program, which exists as long as the block runs, and the compiler's log. Raises
        CompileError."""
        library, program = self._library, ctypes.c_void_p()
        names, texts = _strings(list(_HEADERS)), _strings(list(_HEADERS.values()))
        self._check(
            library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernel.cu", len(_HEADERS), texts, names
            )
        )
        try:
            status = library.nvrtcCompileProgram(program, len(self._options), self._options)
            log = self._text(program, "ProgramLog").decode(errors="replace")
            if status:
                raise CompileError(f"nvrtc: {first_error(log)}")
            yield program, log
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _check(self, status: int) -> None:
        if status:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(f"nvrtc: {self._library.nvrtcGetErrorString(status).decode()}")


def _find(arch: str) -> tuple[ctypes.CDLL, Sequence[Path]]:
    wanted = int("".join(filter(str.isdigit, arch)))
    seen = []
    for installation in _installations():
        library = _load(installation.library)
        count = ctypes.c_int()
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        library.nvrtcGetSupportedArchs(known)
        if wanted in known:
            return library, installation.includes
        seen.append(f"{installation.library.name} knows sm_{min(known)} to sm_{max(known)}")
    if seen:
        raise BadInput(f"no NVRTC here compiles for {arch} ({'; '.join(seen)}): {_INSTALL}")
    raise BadInput(f"NVRTC is not installed, which compiles CUDA for {arch}: {_INSTALL}")


def _load(path: Path) -> ctypes.CDLL:
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)  # NVRTC looks for it by name, and not beside itself
    return ctypes.CDLL(str(path))


def _installations() -> Iterator[_Installation]:
    """Yield the libraries that are here, newest first: those from pip (CUDA 13, then 12) and, between these two, those
    of CUDA toolkits."""
    package = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (package.submodule_search_locations or ())] if package else []
    toolkits = list(_toolkits())
    for root in roots:
        # torch brings the library, but not every header.
        yield from _at(root / "cu13" / "lib", root / "cu13" / "include", *(path / "include" for path in toolkits))
    for toolkit in toolkits:
        yield from _at(toolkit / "lib64", toolkit / "include")
    for root in roots:
        headers = [root / part / "include" for part in ("cuda_runtime", "cuda_nvcc")]
        yield from _at(root / "cuda_nvrtc" / "lib", *headers)


def _toolkits() -> Iterator[Path]:
    """Yield the folders where a CUDA toolkit may be: those that the environment names, that of the compiler, and the
    usual one."""
    named = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME")]
    compiler = shutil.which("nvcc")
    own = [Path(compiler).resolve().parent.parent] if compiler else []
    yield from dict.fromkeys([*(Path(folder) for folder in named if folder), *own, Path(_TOOLKIT)])


def _at(folder: Path, *includes: Path) -> Iterator[_Installation]:
    """Yield the library in a folder, if the headers that TVM's source includes came with it."""
    found = sorted(path for path in folder.glob("libnvrtc.so*") if ".alt." not in path.name)
    if found and all(any((include / name).is_file() for include in includes) for name in _INCLUDED):
        yield _Installation(found[-1], includes)


def _strings(values: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*values)
