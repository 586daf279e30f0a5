"""This module rewrites the text of OpenCL kernels between TVM's code generator and the driver.

Importing it registers the hook through which TVM passes every OpenCL kernel. Start at `rewrites_opencl`. The rewrites
that all templates need are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from templates.gpu.limits import gpu_limits
from templates.rewrite import LOCALITY

Rewrite = Callable[[str, Target], str]

BUILD_OPTIONS = "// edgetune-build-options:"  # begins a line of a kernel's text with options to build it with
_REWRITES: list[Rewrite] = []
_PREFETCH = "edgetune_prefetch"
_VECTORS = (2, 4, 8, 16)
_INTEGERS = ("int", "uint", "char", "uchar", "short", "ushort", "long", "ulong")
_OPTIONAL = re.compile(r"\b(half|double)\d*\b")
_INDEX = re.compile(r"convert_int\((get_(?:group|local)_id\(\d\))\)")
_KERNEL = "__kernel void"
_INDICES = re.compile(r"^ *(?P<type>(?:int|long)(?P<lanes>\d+)) (?P<name>\w+) = (?P<value>.*);\n", re.MULTILINE)
_ONE_BY_ONE = re.compile(
    r"\(\([a-z]+(?P<lanes>\d+)\)\((?P<place>[^\[\]\n,]+)\[(?P<indices>\w+)\.s0\](?P<others>[^\n]*?)\)\)"
)


def rewrites_opencl(rewrite: Rewrite) -> Rewrite:
    """Register a rewrite(code, target) that every OpenCL kernel passes through. Usable as a decorator."""
    _REWRITES.append(rewrite)
    return rewrite


def build_options(code: str) -> list[str]:
    """Return the options that OpenCL code says it is to be built with, each once."""
    lines = (line.split(BUILD_OPTIONS)[1] for line in code.splitlines() if BUILD_OPTIONS in line)
    return list(dict.fromkeys(option for line in lines for option in line.split()))


@rewrites_opencl
def with_wide_indices(code: str, target: Target) -> str:
    """Compute addresses in 64 bits on a CPU.

    LLVM folds no constant into an address that is extended from 32 bits. Every load in an unrolled body would take
    three instructions, which doubled the time that was measured.
    """
    limits = gpu_limits(target)
    if limits is None or limits.family != "cpu":
        return code
    return _INDEX.sub(r"((long)\1)", code)


def prefetch(buffer: Any, indices: Sequence[Any]) -> Any:
    """Make a statement that fetches the cache line of buffer[indices] in OpenCL code for a CPU.

    The address may lie outside the buffer, as nothing is read.
    """
    address = tirx.address_of(tirx.BufferLoad(buffer, list(indices)))
    return tirx.Evaluate(tirx.call_extern("void", _PREFETCH, address))


@rewrites_opencl
def with_prefetch(code: str, _target: Target) -> str:
    """Define the function that `prefetch` calls, in kernels that use it.

    It is clang's builtin, which drivers for CPUs have, and which takes an address of global memory only after a cast.
    OpenCL's own prefetch does nothing in PoCL.
    """
    if _PREFETCH not in code:
        return code
    fetch = f"__builtin_prefetch((const __private void*)(ulong)(address), 0, {LOCALITY})"
    return f"#define {_PREFETCH}(address) {fetch}\n{code}"


@rewrites_opencl
def with_vector_loads(code: str, _target: Target) -> str:
    """Load neighbouring values by one vload.

    TVM does that only where it can prove that the address is a multiple of the vector's bytes, which OpenCL does not
    ask for. Elsewhere it makes a vector of indices and loads value by value.
    """
    kernels = code.split(_KERNEL)  # names are unique in a kernel, and a program has the text of several
    return _KERNEL.join(map(_with_vector_loads, kernels))


def _with_vector_loads(kernel: str) -> str:
    found = list(_INDICES.finditer(kernel))
    bases = {m["name"]: _first_of_neighbours(m["value"], m["type"], int(m["lanes"])) for m in found}

    def vload(match: re.Match[str]) -> str:
        lanes, place, indices = int(match["lanes"]), match["place"], match["indices"]
        others = "".join(f",{place}[{indices}.s{lane:x}]" for lane in range(1, lanes))
        base = bases.get(indices) if match["others"] == others else None
        return f"vload{lanes}(0, {place} + {base})" if base else match[0]

    kernel = _ONE_BY_ONE.sub(vload, kernel)
    for match in found:
        if bases[match["name"]] and f"{match['name']}." not in kernel:
            kernel = kernel.replace(match[0], "")
    return kernel


def _first_of_neighbours(indices: str, kind: str, lanes: int) -> str:
    """Return the first of a vector of indices that count up by one, or "" if they do not."""
    base = indices.removeprefix(f"({kind})(").split("+(1*0), ", 1)[0]
    return base if indices == f"({kind})({', '.join(f'{base}+(1*{lane})' for lane in range(lanes))})" else ""


@rewrites_opencl
def with_whole_accesses(code: str, target: Target) -> str:
    """Read and write a vector of floats by one access on a CPU.

    PoCL's vload and vstore are accesses of two values. LLVM joins those of memory that others see, but leaves arrays of
    an item's own cut into such pairs. Kernels with types that not all drivers have (half, double) stay as they are.
    """
    limits = gpu_limits(target)
    if limits is None or limits.family != "cpu" or _OPTIONAL.search(code):
        return code
    widths = [width for width in _VECTORS if f"vload{width}(" in code or f"vstore{width}(" in code]
    return "".join(_accesses(width) for width in widths) + code


def _accesses(width: int) -> str:
    """Return macros that take the place of vload and vstore, and the functions that they call."""
    vector, guard = f"edgetune_float{width}", f"EDGETUNE_VECTORS_OF_{width}"
    lines = [f"typedef float{width} {vector} __attribute__((aligned(4)));"]
    for space in ("__global", "__local", "__private"):
        at = f"{space} {vector}*)(p + i * {width})"
        lines += _functions(width, space, "float", f"return *(const {at};", f"*({at} = v;")
        for kind in _INTEGERS:
            lines += _functions(width, space, kind, f"return vload{width}(i, p);", f"vstore{width}(v, i, p);")
    for name in (f"vload{width}", f"vstore{width}"):
        lines += [f"#undef {name}", f"#define {name} edgetune_{name}"]  # it is a macro already in PoCL
    # a program has the text of several kernels
    return "\n".join([f"#ifndef {guard}", f"#define {guard}", *lines, "#endif"]) + "\n"


def _functions(width: int, space: str, kind: str, load: str, store: str) -> list[str]:
    """Return two functions with these bodies, for vectors of a type in an address space."""
    begin, vector = "static inline __attribute__((overloadable, always_inline))", f"{kind}{width}"
    return [
        f"{begin} {vector} edgetune_vload{width}(ulong i, const {space} {kind}* p) {{ {load} }}",
        f"{begin} void edgetune_vstore{width}({vector} v, ulong i, {space} {kind}* p) {{ {store} }}",
    ]


def _rewritten(code: str, target: Target) -> str:
    for rewrite in _REWRITES:
        code = rewrite(code, target)
    return code


tvm.register_global_func("tvm_callback_opencl_postproc", _rewritten)
