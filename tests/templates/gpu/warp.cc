// Plays a warp of 32 threads that multiplies fragments of bytes with the functions in fragments.h.
//
// Its argument is the distance of rows in words. It reads 16 rows of uint8 and 32 rows of int8 from standard input, adds
// their products twice to sums that begin with 5, and writes 16 rows of 32 sums of int32 to standard output.
//
// Both instructions are written after the PTX ISA: "ldmatrix", and "Matrix Fragments for mma.m16n8k32". C++'s own
// library is not used, as it takes a minute to build.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define __device__
#define __forceinline__ inline

struct Index {
  int x;
};
struct int2 {
  int x, y;
};
static int2 make_int2(int x, int y) { return {x, y}; }
static thread_local Index threadIdx;

namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
template <typename Use, int m, int n, int k, typename T, typename Layout = void>
class fragment;
}  // namespace wmma
}  // namespace nvcuda

static pthread_barrier_t warp;
static const int* addresses[32];
static int held_a[32][4], held_b[32][2];

// Eight threads each give the rows of one of four matrices of 8 x 8 numbers of 16 bits. Every thread gets two
// neighbouring numbers, which are a word, of each matrix.
static void edgetune_load_rows(int* to, const int* from) {
  const int lane = threadIdx.x;
  addresses[lane] = from;
  pthread_barrier_wait(&warp);
  for (int matrix = 0; matrix < 4; ++matrix) to[matrix] = addresses[8 * matrix + lane / 4][lane % 4];
  pthread_barrier_wait(&warp);
}

template <typename T>
static int byte_of(int word, int i) {
  return static_cast<T>(static_cast<uint32_t>(word) >> (8 * i));
}

static void edgetune_multiply_bytes(int* sums, const int* a, const int* b) {
  const int lane = threadIdx.x;
  for (int i = 0; i < 4; ++i) held_a[lane][i] = a[i];
  for (int i = 0; i < 2; ++i) held_b[lane][i] = b[i];
  pthread_barrier_wait(&warp);
  int first[16][32], second[32][8];
  for (int thread = 0; thread < 32; ++thread) {
    const int group = thread >> 2, in_group = thread & 3;
    for (int i = 0; i < 16; ++i) {
      const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
      const int column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
      first[row][column] = byte_of<uint8_t>(held_a[thread][i / 4], i % 4);
    }
    for (int i = 0; i < 8; ++i) {
      const int row = in_group * 4 + (i & 3) + (i < 4 ? 0 : 16);
      second[row][group] = byte_of<int8_t>(held_b[thread][i / 4], i % 4);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = (lane & 3) * 2 + (i & 1);
    for (int k = 0; k < 32; ++k) sums[i] += first[row][k] * second[k][column];
  }
  pthread_barrier_wait(&warp);
}

#include "fragments.h"

static int stride, first_words[16 * 64], second_words[32 * 64], out[16 * 32];

static void* item(void* lane) {
  threadIdx.x = static_cast<int>(reinterpret_cast<intptr_t>(lane));
  nvcuda::wmma::edgetune_a first;
  nvcuda::wmma::edgetune_b second;
  nvcuda::wmma::edgetune_sums sums;
  nvcuda::wmma::load_matrix_sync(first, first_words, stride);
  nvcuda::wmma::load_matrix_sync(second, second_words, stride);
  nvcuda::wmma::fill_fragment(sums, 5);
  nvcuda::wmma::mma_sync(sums, first, second, sums);
  nvcuda::wmma::mma_sync(sums, first, second, sums);
  nvcuda::wmma::store_matrix_sync(out, sums, 32, nvcuda::wmma::mem_row_major);
  return nullptr;
}

int main(int, char** argv) {
  stride = atoi(argv[1]);
  if (stride > 64 || fread(first_words, 64 * stride, 1, stdin) != 1) return 1;
  if (fread(second_words, 128 * stride, 1, stdin) != 1) return 1;
  pthread_t items[32];
  pthread_barrier_init(&warp, nullptr, 32);
  for (intptr_t lane = 0; lane < 32; ++lane) {
    if (pthread_create(&items[lane], nullptr, item, reinterpret_cast<void*>(lane)) != 0) return 1;
  }
  for (pthread_t one : items) pthread_join(one, nullptr);
  return fwrite(out, sizeof out, 1, stdout) == 1 ? 0 : 1;
}
