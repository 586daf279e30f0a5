#include "trace.h"

#include <utility>

namespace edgetune::opencl {

Trace& Trace::Global() {
  static auto* trace = new Trace;
  return *trace;
}

std::vector<TracedLaunch> Trace::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  on_ = false;
  return std::exchange(launches_, {});
}

void Trace::Add(const std::string& kernel, const Stream& stream, cl_event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (on_) {
    launches_.push_back({kernel, &stream.device, &stream, event});
  } else {
    stream.device.cl.clReleaseEvent(event);
  }
}

}  // namespace edgetune::opencl
