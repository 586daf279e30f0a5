// What this process has asked of drivers so far, over all devices.
#pragma once
#include <atomic>
#include <cstdint>

namespace edgetune::opencl {

// X(name, what it counts)
#define EDGETUNE_OPENCL_COUNTERS(X)                                     \
  X(allocations) /* buffers made, workspaces included */                \
  X(releases)    /* buffers released */                                 \
  X(workspaces)  /* workspaces handed out, from the pool or not */      \
  X(launches)                                                           \
  X(flushes)  /* because of a device's flush_every */                   \
  X(finishes) /* queue-wide waits */                                    \
  X(bytes_to_device)                                                    \
  X(bytes_from_device)                                                  \
  X(bytes_on_device)   /* copied from buffer to buffer of one device */ \
  X(programs_compiled) /* from source */                                \
  X(programs_loaded)   /* from the cache of binaries */

struct Counters {
#define EDGETUNE_OPENCL_COUNTER(name) std::atomic<int64_t> name{0};
  EDGETUNE_OPENCL_COUNTERS(EDGETUNE_OPENCL_COUNTER)
#undef EDGETUNE_OPENCL_COUNTER
};

inline Counters counters;

}  // namespace edgetune::opencl
