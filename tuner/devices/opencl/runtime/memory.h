// Buffers, copies and pooled workspaces. A DLTensor's `data` is the cl_mem itself; offsets are in bytes.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "devices.h"

namespace edgetune::opencl {

// Throws MemoryError if the device cannot give `size` bytes.
cl_mem AllocateBuffer(Device& device, size_t size);
void FreeBuffer(Device& device, cl_mem buffer);

// From and to the host these return when the copy is done; on one device it is enqueued.
void CopyToDevice(Stream& stream, const void* from, cl_mem to, size_t offset, size_t size);
void CopyFromDevice(Stream& stream, cl_mem from, size_t offset, void* to, size_t size);
void CopyOnDevice(Stream& stream, cl_mem from, size_t from_offset, cl_mem to, size_t to_offset, size_t size);
// Two devices share no context, even of one driver: through the host, done when it returns.
void CopyBetweenDevices(Stream& from_stream, cl_mem from, size_t from_offset, Stream& to_stream, cl_mem to,
                        size_t to_offset, size_t size);

// Buffers for the inside of a call. What one call gives back the next on the same stream may have at once: a stream
// runs in order, so the first call's kernels are done with it by then. Once a pattern of requests has been seen, it
// needs no more allocations.
class WorkspacePool {
 public:
  static WorkspacePool& Global();

  cl_mem Take(Stream& stream, size_t size);
  void Give(Device& device, cl_mem buffer);
  // Frees what a stream that goes away has left.
  void Drop(Stream& stream);

 private:
  struct Taken {
    const Stream* stream;
    size_t size;
  };

  std::mutex mutex_;
  std::unordered_map<const Stream*, std::multimap<size_t, cl_mem>> free_;
  std::unordered_map<cl_mem, Taken> taken_;
};

}  // namespace edgetune::opencl
