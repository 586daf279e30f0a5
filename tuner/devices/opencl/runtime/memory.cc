#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "counters.h"
#include "fail.h"
#include "threads.h"

namespace edgetune::opencl {

namespace {

void Count(std::atomic<int64_t>* counter, size_t amount = 1) {
  counter->fetch_add(int64_t(amount), std::memory_order_relaxed);
}

constexpr size_t kWorkspaceUnit = 4096;  // sizes are rounded up, so that similar requests share
constexpr size_t kLargePage = size_t(2) << 20;

// Memory of ours behind a buffer of a processor.
class Backing {
 public:
  Backing(Device& device, size_t size) : device_(device), size_(size) {
    if (device.is_open) {
      start_ = device.cl.clSVMAlloc(device.context(), CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, size, 0);
    } else {
      start_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (start_ == MAP_FAILED) start_ = nullptr;
    }
  }
  Backing(const Backing&) = delete;
  ~Backing() {
    if (start_ == nullptr) return;
    if (device_.is_open) {
      device_.cl.clSVMFree(device_.context(), start_);
    } else {
      munmap(start_, size_);
    }
  }

  char* start() const { return static_cast<char*>(start_); }

 private:
  Device& device_;
  const size_t size_;
  void* start_ = nullptr;
};

// A processor's driver has ordinary pages, and a network's weights are in more of them than the processor keeps the
// addresses of: large buffers are in large ones. Where the host may use buffers as they are, small ones are ours too
// (see HostMemory). Null where the system or the driver will not have it so.
cl_mem AllocateOnProcessor(Device& device, size_t size) {
  const bool large = size >= kLargePage / 2;
  if (!large && !device.is_open) return nullptr;
  const size_t whole = large ? (size + kLargePage - 1) / kLargePage * kLargePage : size;
  auto backing = std::make_unique<Backing>(device, large ? whole + kLargePage : whole);
  char* start = backing->start();
  if (start == nullptr) return nullptr;
  if (large) {
    start += -reinterpret_cast<uintptr_t>(start) % kLargePage;
    madvise(start, whole, MADV_HUGEPAGE);
  }
  cl_int status = CL_SUCCESS;
  cl_mem buffer =
      device.cl.clCreateBuffer(device.context(), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, size, start, &status);
  if (status != CL_SUCCESS) return nullptr;
  const auto release = [](cl_mem, void* mine) { delete static_cast<Backing*>(mine); };
  if (device.cl.clSetMemObjectDestructorCallback(buffer, release, backing.get()) != CL_SUCCESS) {
    device.ReleaseBuffer(buffer);
    return nullptr;
  }
  backing.release();
  return buffer;
}

// Where the host reads and writes a buffer itself, while no command uses it: a driver would wake a thread of its own
// for a copy, and let the caller sleep meanwhile. Null where it may not.
char* HostMemory(const Device& device, cl_mem buffer) {
  void* memory = nullptr;
  if (device.is_open) device.cl.clGetMemObjectInfo(buffer, CL_MEM_HOST_PTR, sizeof memory, &memory, nullptr);
  return static_cast<char*>(memory);
}

}  // namespace

cl_mem AllocateBuffer(Device& device, size_t size) {
  cl_int status = CL_SUCCESS;
  cl_mem buffer = device.is_processor && size > 0 ? AllocateOnProcessor(device, size) : nullptr;
  if (buffer == nullptr) {
    // OpenCL has no empty buffers.
    buffer = device.cl.clCreateBuffer(device.context(), CL_MEM_READ_WRITE, std::max<size_t>(size, 1), nullptr, &status);
  }
  if (status != CL_SUCCESS) {
    Fail("MemoryError", device.label(), ": a buffer of ", size, " bytes cannot be allocated (", ErrorName(status),
         "): the device has ", DeviceValue<cl_ulong>(device.cl, device.id, CL_DEVICE_GLOBAL_MEM_SIZE),
         " bytes in all and allows ", DeviceValue<cl_ulong>(device.cl, device.id, CL_DEVICE_MAX_MEM_ALLOC_SIZE),
         " in one buffer");
  }
  Count(&counters.allocations);
  return buffer;
}

void FreeBuffer(Device& device, cl_mem buffer) {
  if (!Registry::Alive()) return;
  device.ReleaseBuffer(buffer);
  Count(&counters.releases);
}

void CopyToDevice(Stream& stream, const void* from, cl_mem to, size_t offset, size_t size) {
  if (size == 0) return;
  const Device& device = stream.device;
  if (char* memory = HostMemory(device, to)) {
    device.Check(device.cl.clFinish(stream.queue), "clFinish");
    std::memcpy(memory + offset, from, size);
  } else {
    device.Check(device.cl.clEnqueueWriteBuffer(stream.queue, to, CL_TRUE, offset, size, from, 0, nullptr, nullptr),
                 "clEnqueueWriteBuffer");
  }
  Count(&counters.bytes_to_device, size);
}

void CopyFromDevice(Stream& stream, cl_mem from, size_t offset, void* to, size_t size) {
  if (size == 0) return;
  const Device& device = stream.device;
  if (const char* memory = HostMemory(device, from)) {
    device.Check(device.cl.clFinish(stream.queue), "clFinish");
    std::memcpy(to, memory + offset, size);
  } else {
    device.Check(device.cl.clEnqueueReadBuffer(stream.queue, from, CL_TRUE, offset, size, to, 0, nullptr, nullptr),
                 "clEnqueueReadBuffer");
  }
  if (device.is_processor) HostThreads::Rise();
  Count(&counters.bytes_from_device, size);
}

void CopyOnDevice(Stream& stream, cl_mem from, size_t from_offset, cl_mem to, size_t to_offset, size_t size) {
  if (size == 0) return;
  const Device& device = stream.device;
  device.Check(device.cl.clEnqueueCopyBuffer(stream.queue, from, to, from_offset, to_offset, size, 0, nullptr, nullptr),
               "clEnqueueCopyBuffer");
  Count(&counters.bytes_on_device, size);
}

void CopyBetweenDevices(Stream& from_stream, cl_mem from, size_t from_offset, Stream& to_stream, cl_mem to,
                        size_t to_offset, size_t size) {
  constexpr size_t kPiece = size_t(16) << 20;
  std::vector<char> host(std::min(size, kPiece));
  for (size_t done = 0; done < size; done += kPiece) {
    const size_t piece = std::min(kPiece, size - done);
    CopyFromDevice(from_stream, from, from_offset + done, host.data(), piece);
    CopyToDevice(to_stream, host.data(), to, to_offset + done, piece);
  }
}

// ---- WorkspacePool --------------------------------------------------------------------------------------------------

WorkspacePool& WorkspacePool::Global() {
  static auto* pool = new WorkspacePool;
  return *pool;
}

cl_mem WorkspacePool::Take(Stream& stream, size_t size) {
  Count(&counters.workspaces);
  size = (std::max<size_t>(size, 1) + kWorkspaceUnit - 1) / kWorkspaceUnit * kWorkspaceUnit;
  std::lock_guard<std::mutex> lock(mutex_);
  auto& free = free_[&stream];
  auto fitting = free.lower_bound(size);
  if (fitting == free.end()) {
    // The largest that is free makes room for one that is large enough: a stream never keeps more buffers than one
    // call has used at a time, however many different calls it has seen.
    if (!free.empty()) {
      auto largest = std::prev(free.end());
      FreeBuffer(stream.device, largest->second);
      free.erase(largest);
    }
    cl_mem buffer = AllocateBuffer(stream.device, size);
    taken_[buffer] = {&stream, size};
    return buffer;
  }
  cl_mem buffer = fitting->second;
  taken_[buffer] = {&stream, fitting->first};
  free.erase(fitting);
  return buffer;
}

void WorkspacePool::Give(Device& device, cl_mem buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = taken_.find(buffer);
  if (found == taken_.end()) Fail("ValueError", device.label(), ": no such workspace is in use");
  free_[found->second.stream].emplace(found->second.size, buffer);
  taken_.erase(found);
}

void WorkspacePool::Drop(Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = free_.find(&stream);
  if (found == free_.end()) return;
  for (const auto& entry : found->second) FreeBuffer(stream.device, entry.second);
  free_.erase(found);
}

}  // namespace edgetune::opencl
