// Stands in for Nvidia's header, so that a host's compiler takes the CUDA source that TVM writes. A block runs on one
// thread of the host: see blocks.cc.
#ifndef EMULATED_CUDA_H_
#define EMULATED_CUDA_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
extern Index threadIdx, blockIdx;
void __syncthreads();

// Call `thread` once for every item of every group. `waits` says whether the threads of a group wait for each other.
void run_grid(const Index &groups, const Index &items, bool waits, const std::function<void()> &thread);

using std::max;
using std::min;

template <class T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
};
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x, y, z, w;
};
using float2 = Two<float>;
using float4 = Four<float>;
using int2 = Two<int>;
using int4 = Four<int>;
using ushort2 = Two<unsigned short>;
using ushort4 = Four<unsigned short>;
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// A kernel that can be called with pointers to its arguments. `sizes` are those of the arguments in bytes, and `memory`
// says which of them are pointers. `waits` says whether its threads wait for each other.
struct Kernel {
  const char *name;
  void (*function)();
  void (*call)(void (*)(), void *const *);
  std::vector<size_t> sizes;
  std::vector<bool> memory;
  bool waits;
};

template <class... Arguments, size_t... I>
void call_with(void (*function)(Arguments...), void *const *values, std::index_sequence<I...>) {
  function(*static_cast<Arguments *>(values[I])...);
}

template <class... Arguments>
Kernel kernel(const char *name, void (*function)(Arguments...), bool waits) {
  auto call = [](void (*erased)(), void *const *values) {
    auto typed = reinterpret_cast<void (*)(Arguments...)>(erased);
    call_with(typed, values, std::index_sequence_for<Arguments...>());
  };
  auto erased = reinterpret_cast<void (*)()>(function);
  return {name, erased, call, {sizeof(Arguments)...}, {std::is_pointer_v<Arguments>...}, waits};
}

// The machine code of a module, and what its kernels are compiled to for the host.
struct Image {
  const unsigned char *bytes;
  size_t size;
  std::vector<Kernel> kernels;
};
extern const std::vector<Image> images;

#endif
