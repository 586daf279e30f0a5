"""This module adds fragments of bytes to the text of CUDA kernels: 16 pixels by 32 channels, summed over 32 bytes.

CUDA's own fragments multiply bytes of one kind only, half as many at a time. The added text defines ours on the
instructions that multiply uint8 by int8 (mma.m16n8k32) and that load operands for them (ldmatrix), from compute
capability 8.0 on. In local memory the operands are words of four bytes, 8 for each pixel and for each output channel.
A warp is the 32 items of a group along x. Importing this module is enough; other kernels are not changed.

Source: the PTX ISA, "Matrix Fragments for mma.m16n8k32" and "ldmatrix".
"""

from __future__ import annotations

from tvm.target import Target

from templates.gpu.cuda_text import rewrites_cuda

ROWS, COLUMNS, DEPTH = 16, 32, 32  # pixels, output channels and input channels of fragments
_INCLUDE = "#include <mma.h>\n"
_TYPE = f"fragment<nvcuda::wmma::accumulator, {ROWS}, {COLUMNS}, {DEPTH}, int>"

# Four matrices of 8 rows by 4 words are loaded from rows that each item of the warp gives the address of one of. An
# item gets word `lane % 4` of row `lane / 4` of each.
_INSTRUCTIONS = """
static __device__ __forceinline__ void edgetune_load_rows(int* to, const int* from) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
static __device__ __forceinline__ void edgetune_multiply_bytes(int* sums, const int* a, const int* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
"""

# Items hold four sums of every eight columns: two neighbours in row `lane / 4`, and two in the row 8 below.
FRAGMENTS = f"""
namespace nvcuda {{ namespace wmma {{
template <> class fragment<matrix_a, {ROWS}, {COLUMNS}, {DEPTH}, unsigned char, row_major> {{ public: int x[4]; }};
template <> class fragment<matrix_b, {ROWS}, {COLUMNS}, {DEPTH}, signed char, col_major> {{ public: int x[8]; }};
template <> class fragment<accumulator, {ROWS}, {COLUMNS}, {DEPTH}, int> {{ public: int x[16]; }};
typedef fragment<matrix_a, {ROWS}, {COLUMNS}, {DEPTH}, unsigned char, row_major> edgetune_a;
typedef fragment<matrix_b, {ROWS}, {COLUMNS}, {DEPTH}, signed char, col_major> edgetune_b;
typedef fragment<accumulator, {ROWS}, {COLUMNS}, {DEPTH}, int> edgetune_sums;

static __device__ __forceinline__ void load_matrix_sync(edgetune_a& to, const int* from, unsigned stride) {{
  const int lane = threadIdx.x;
  edgetune_load_rows(to.x, from + (lane & 15) * stride + (lane >> 4) * 4);
}}
static __device__ __forceinline__ void load_matrix_sync(edgetune_b& to, const int* from, unsigned stride) {{
  const int lane = threadIdx.x;
  from += ((lane >> 4) * 8 + (lane & 7)) * stride + (lane >> 3 & 1) * 4;
  edgetune_load_rows(to.x, from);
  edgetune_load_rows(to.x + 4, from + 16 * stride);
}}
static __device__ __forceinline__ void fill_fragment(edgetune_sums& sums, int value) {{
#pragma unroll
  for (int i = 0; i < 16; ++i) sums.x[i] = value;
}}
static __device__ __forceinline__ void mma_sync(
    edgetune_sums& to, const edgetune_a& a, const edgetune_b& b, const edgetune_sums& sums) {{
  to = sums;
#pragma unroll
  for (int i = 0; i < 4; ++i) edgetune_multiply_bytes(to.x + 4 * i, a.x, b.x + 2 * i);
}}
static __device__ __forceinline__ void store_matrix_sync(
    int* to, const edgetune_sums& sums, unsigned stride, layout_t) {{
  const int lane = threadIdx.x;
  to += (lane >> 2) * stride + (lane & 3) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    *reinterpret_cast<int2*>(to + 8 * i) = make_int2(sums.x[4 * i], sums.x[4 * i + 1]);
    *reinterpret_cast<int2*>(to + 8 * stride + 8 * i) = make_int2(sums.x[4 * i + 2], sums.x[4 * i + 3]);
  }}
}}
}} }}
"""


@rewrites_cuda
def with_byte_fragments(code: str, _target: Target) -> str:
    """Add the definition of fragments of bytes to the text of CUDA code that uses them."""
    return code.replace(_INCLUDE, _INCLUDE + _INSTRUCTIONS + FRAGMENTS, 1) if _TYPE in code else code
