"""Says how OpenCL and CUDA devices multiply words of four bytes (`templates.words`). Start at `held_words`.

Importing this module adds the definition of the function that kernels call to their text.

Sources: the OpenCL Extension Specification, cl_khr_integer_dot_product; Khronos's registry,
cl_arm_integer_dot_product_accumulate_int8; the PTX ISA, dp4a.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.gpu.cuda_text import rewrites_cuda
from templates.gpu.limits import GpuLimits, gpu_limits
from templates.gpu.opencl_text import BUILD_OPTIONS, rewrites_opencl
from templates.integers import INTEGERS, MIDDLE, SUMS, Held
from templates.words import BYTES, computes_dots_by, pack_words

_NAME = "edgetune_dot"
_CALL = re.compile(rf"\b{_NAME}(\d+)\(")

# The sum s plus the products of the bytes of d and w. Only words of signed bytes are multiplied on Arm.
_BY_EXTENSION = {
    "khr": "s + dot_4x8packed_us_int(as_uint(d), as_uint(w))",
    "arm": "arm_dot_acc(as_char4(d), as_char4(w), s)",
}
_ENABLE = {
    "khr": f"{BUILD_OPTIONS} -cl-std=CL3.0\n",
    "arm": "#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable\n",
}
_BY_SHIFTS = " + ".join(["s", *(f"((d >> {8 * i}) & 255) * ((w << {24 - 8 * i}) >> 24)" for i in range(BYTES))])
_CUDA = f"""static __device__ __forceinline__ int {_NAME}(int s, int d, int w) {{
#if __CUDA_ARCH__ >= 610
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(s) : "r"(d), "r"(w));
#else
#pragma unroll
  for (int i = 0; i < {BYTES}; ++i) s += ((unsigned)d >> (8 * i) & 255u) * ((int)((unsigned)w << (24 - 8 * i)) >> 24);
#endif
  return s;
}}
"""


def held_words(limits: GpuLimits) -> Held:
    """Return in which form a device holds the integers that it multiplies."""
    return Held("int8" if limits.dots == "arm" else INTEGERS, SUMS, BYTES, words=True)


def packed_words(weight: np.ndarray, held: Held) -> np.ndarray:
    """Pack a weight of int8 (blocks, axes of the reduction, lanes) as words. Behind it stands what sums of moved data
    lack: one more of the first of these axes, whose first word of each lane is that number."""
    words = pack_words(weight)
    if not held.moved:
        return words
    last = np.zeros_like(words[:, :1])
    lacking = MIDDLE * weight.astype(np.int32).sum(tuple(range(1, weight.ndim - 1)))
    last.reshape(len(words), -1, words.shape[-1])[:, 0] = lacking
    return np.concatenate([words, last], 1)


def _call_of_lanes(call: Any) -> Any:
    """Call the function for as many lanes as the call's type has."""
    lanes = call.ty.dtype.lanes
    return tirx.call_pure_extern(call.ty.dtype, f"{_NAME}{lanes}", *call.args)


def _call_of_each(call: Any) -> Any:
    """Call the function: TVM's code for CUDA calls a function for each lane of a vector."""
    return tirx.call_pure_extern(call.ty.dtype, _NAME, *call.args)


computes_dots_by("opencl", _call_of_lanes)
computes_dots_by("cuda", _call_of_each)


@rewrites_opencl
def with_opencl_dots(code: str, target: Target) -> str:
    """Define the functions of words in OpenCL kernels that call them."""
    limits = gpu_limits(target)
    widths = sorted({int(width) for width in _CALL.findall(code)})
    if limits is None or not widths:
        return code
    return _ENABLE.get(limits.dots, "") + "".join(_opencl_dot(limits.dots, width) for width in widths) + code


def _opencl_dot(dots: str, width: int) -> str:
    """Return the definition of the function for vectors of a width, which a program may contain several times."""
    name, kind = f"{_NAME}{width}", f"int{width}" if width > 1 else "int"
    scalar = _BY_EXTENSION.get(dots)
    if scalar is None:
        body = _BY_SHIFTS
    elif width == 1:
        body = scalar
    else:
        lanes = (re.sub(r"\b([sdw])\b", rf"\1.s{i:x}", scalar) for i in range(width))
        body = f"({kind})({', '.join(lanes)})"
    guard = name.upper()
    text = f"inline {kind} {name}({kind} s, {kind} d, {kind} w) {{ return {body}; }}"
    return f"#ifndef {guard}\n#define {guard}\nstatic {text}\n#endif\n"


@rewrites_cuda
def with_cuda_dots(code: str, _target: Target) -> str:
    """Define the function of words in CUDA code that calls it."""
    return f"{_CUDA}{code}" if f"{_NAME}(" in code else code
