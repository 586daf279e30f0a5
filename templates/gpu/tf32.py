"""This module adds fragments of tf32 to the text of CUDA kernels, as TVM 0.27 generates no code for them.

For TVM they are fragments of half precision of 16 x 16 x 8, a shape that CUDA does not have. The added text defines
this type as CUDA's fragment of tf32 (8 bits of exponent, 10 of mantissa), which is loaded from float32 and rounded as
CUDA requires. Importing this module is enough; kernels without such fragments are not changed.

Source: CUDA C++ Programming Guide, "Warp Matrix Functions", "Alternate Floating Point".
"""

from __future__ import annotations

import re

from tvm.target import Target

from templates.gpu.cuda_text import rewrites_cuda

_INCLUDE = "#include <mma.h>\n"
_TYPE = re.compile(r"fragment<nvcuda::wmma::matrix_[ab], 16, 16, 8, half, nvcuda::wmma::row_major>")
_OPERAND = """template <> class fragment<{operand}, 16, 16, 8, __half, row_major>
    : public fragment<{operand}, 16, 16, 8, precision::tf32, row_major> {{}};
static __device__ __forceinline__ void load_matrix_sync(
    fragment<{operand}, 16, 16, 8, __half, row_major>& to, const float* from, unsigned stride) {{
  fragment<{operand}, 16, 16, 8, precision::tf32, row_major>& loaded = to;
  load_matrix_sync(loaded, from, stride);
  for (int i = 0; i < loaded.num_elements; ++i) loaded.x[i] = __float_to_tf32(loaded.x[i]);
}}
"""
_PRELUDE = (
    "namespace nvcuda { namespace wmma {\n"
    + "".join(_OPERAND.format(operand=operand) for operand in ("matrix_a", "matrix_b"))
    + "} }\n"
)


@rewrites_cuda
def with_tf32(code: str, _target: Target) -> str:
    """Add the definition of fragments of tf32 to the text of CUDA code that uses them."""
    return code.replace(_INCLUDE, _INCLUDE + _PRELUDE, 1) if _TYPE.search(code) else code
