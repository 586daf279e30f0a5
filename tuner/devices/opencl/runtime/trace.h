// What ran when, by the device's own clock: for profiles, and to see whether kernels ran at the same time.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "devices.h"

namespace edgetune::opencl {

struct TracedLaunch {
  std::string kernel;
  const Device* device;
  const void* stream;  // which one: it may be gone when the trace is read
  cl_event event;
};

class Trace {
 public:
  static Trace& Global();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Start() { on_ = true; }
  // Stops, and hands out what was launched since the start. The caller waits for the events and releases them.
  std::vector<TracedLaunch> Stop();
  // Takes the event over. One of a launch that had begun before the trace was stopped is dropped.
  void Add(const std::string& kernel, const Stream& stream, cl_event event);

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<TracedLaunch> launches_;
};

}  // namespace edgetune::opencl
